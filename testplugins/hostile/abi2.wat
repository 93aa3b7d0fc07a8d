;; Made for another major version.
;; build: wat2wasm --debug-names abi2.wat
(module
  (memory (export "memory") 5)
  (func (export "ph_abi_v2") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"hostile\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"aggregate_id\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]}]}")
  (func (export "ph_describe") (result i64) (i64.const 4398046511324))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
