;; Grows its memory at every batch.
;; build: wat2wasm --debug-names grows.wat
(module
  (import "projhost_v1" "done" (func $done (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 5)
  (func (export "ph_abi_v1") (result i32) (i32.const 0))
  (func (export "ph_alloc") (param i32) (result i32) (i32.const 65536))
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"hostile\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"aggregate_id\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]}]}")
  (func (export "ph_describe") (result i64) (i64.const 4398046511324))
  (func (export "ph_init") (param i32 i32) (result i32) (i32.const 0))
  (func (export "ph_apply") (param $ptr i32) (param $len i32) (result i32)
    (local $i i32) (local $count i32)
    (local.set $count (i32.load offset=12 (local.get $ptr)))
    (block $out
      (loop $next
        (br_if $out (i32.ge_u (local.get $i) (local.get $count)))
        (drop (memory.grow (i32.const 1)))
        (i64.store (i32.const 0) (i64.extend_i32_u (memory.size)))
        (br_if $out (i32.lt_s (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 8)) (i32.const 0)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (local.get $i))
)
