;; A manifest of a million entries, by its length.
;; build: wat2wasm --debug-names describe-huge.wat
(module
  (memory (export "memory") 60)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (func (export "ph_describe") (result i64) (i64.const 0x0000000004000000))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
