;; Counts in a table: each entry calls the function in slot 0, which puts the next one there.
;; A restore of memory and globals would not put the first one back.
;; build: wat2wasm --debug-names table-state.wat
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
        (i64.store (i32.const 0) (i64.extend_i32_u (call_indirect (type $count) (i32.const 0))))
        (br_if $out (i32.lt_s (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 8)) (i32.const 0)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (local.get $i))
  (table $t 1 funcref)
  (elem (i32.const 0) $one)
  (elem declare func $two)
  (type $count (func (result i32)))
  (func $one (result i32) (table.set $t (i32.const 0) (ref.func $two)) (i32.const 1))
  (func $two (result i32) (i32.const 2))
)
