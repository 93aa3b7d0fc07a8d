;; Imports what no host has, and done with another type.
;; build: wat2wasm --debug-names imports.wat
(module
  (import "env" "abort" (func (param i32)))
  (import "env" "shared" (memory 1))
  (import "env" "base" (global i32))
  (import "env" "table" (table 1 funcref))
  (import "projhost_v1" "sql" (func (param i32 i32)))
  (import "projhost_v1" "done" (func (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_frobnicate" (func (result i32)))
  (import "wasi_unstable" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
  (export "memory" (memory 0))
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"hostile\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"aggregate_id\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]}]}")
  (func (export "ph_describe") (result i64) (i64.const 4398046511324))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param i32 i32) (result i32) (i32.const 0))
)
