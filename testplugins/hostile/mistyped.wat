;; Every export has another type than the ABI says; memory is a function.
;; build: wat2wasm --debug-names mistyped.wat
(module
  (memory 1)
  (func (export "memory"))
  (func (export "ph_abi_v1") (result i64) (i64.const 0))
  (func (export "ph_alloc") (param i64) (result i32) (i32.const 0))
  (func (export "ph_describe") (result i32) (i32.const 0))
  (global (export "ph_init") i32 (i32.const 0))
  (func (export "ph_apply") (param i32 i32))
  (func (export "_initialize") (result i32) (i32.const 0))
  (global (export "projhost:mine") i32 (i32.const 0))
)
