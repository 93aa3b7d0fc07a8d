;; Exports nothing at all.
;; build: wat2wasm --debug-names bare.wat
(module
)
