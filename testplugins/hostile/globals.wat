;; Mutable globals that cannot be put back, and a start section.
;; build: wat2wasm --debug-names globals.wat
(module
  (memory (export "memory") 5)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"hostile\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"aggregate_id\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]}]}")
  (func (export "ph_describe") (result i64) (i64.const 4398046511324))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
  (global (mut v128) (v128.const i64x2 0 0))
  (global (mut funcref) (ref.null func))
  (global (mut externref) (ref.null extern))
  (func $boot)
  (start $boot)
)
