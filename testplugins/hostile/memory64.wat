;; A memory of 64 bits.
;; build: wat2wasm --debug-names --enable-memory64 memory64.wat
(module
  (memory (export "memory") i64 2)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (func (export "ph_describe") (result i64) (i64.const 0))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
