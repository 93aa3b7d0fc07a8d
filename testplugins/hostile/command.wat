;; A command, not a reactor.
;; build: wat2wasm --debug-names command.wat
(module
  (memory (export "memory") 5)
  (func (export "_start"))
)
