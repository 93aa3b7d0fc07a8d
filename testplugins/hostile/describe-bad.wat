;; A manifest with a column named to inject SQL and a kind there is not.
;; build: wat2wasm --debug-names describe-bad.wat
(module
  (memory (export "memory") 5)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"x\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"function\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"a; DROP TABLE x\",\"kind\":\"int\"},{\"name\":\"b\",\"kind\":\"number\"}]}]}]}")
  (func (export "ph_describe") (result i64) (i64.const 4398046511357))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
