;; Traps in ph_describe, after it has said why.
;; build: wat2wasm --debug-names trap-describe.wat
(module
  (import "projhost_v1" "fail" (func $fail (param i32 i32 i32)))
  (memory (export "memory") 5)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 16) "no manifest today")
  (func (export "ph_describe") (result i64) (call $fail (i32.const 0) (i32.const 16) (i32.const 17)) (unreachable))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
