;; build: wat2wasm --debug-names misuse.wat
;; A guest that does what the first byte of an entry's data says, well or badly.
;; Ops are echoed, not checked: the bytes after the command go to done as they
;; are. See the list of commands at $work.
(module
  (import "projhost_v1" "done" (func $done (param i32 i32 i32 i32) (result i32)))
  (import "projhost_v1" "keys" (func $keys (param i32 i32 i32) (result i32)))
  (import "projhost_v1" "get" (func $get (param i32 i32 i32 i32 i32) (result i64)))
  (import "projhost_v1" "get_many" (func $get_many (param i32 i32 i32 i32) (result i64)))
  (import "projhost_v1" "list" (func $list (param i32 i32 i32 i32 i32 i32 i32 i32) (result i64)))
  (import "projhost_v1" "log" (func $log (param i32 i32 i32)))
  (import "projhost_v1" "fail" (func $fail (param i32 i32 i32)))
  (import "projhost_v1" "now_us" (func $now_us (result i64)))
  (import "projhost_v1" "random" (func $random (param i32 i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open" (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))

  ;; 0..1023 scratch; 1024 manifest; 4096 text; 8192 counter; 65536 on: the heap
  (memory (export "memory") 2)
  (global $heap (mut i32) (i32.const 65536))
  (global $counter (mut i64) (i64.const 0))
  (global $half (mut f64) (f64.const 0.5))

  (data (i32.const 1024) "{\"abi\":1,\"name\":\"misuse\",\"version\":\"1\",\"consumers\":[{\"type\":\"projection\",\"name\":\"rows\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"aggregate_id\"}],\"tables\":[{\"name\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]},{\"name\":\"parts\",\"parent\":\"rows\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]},{\"type\":\"projection\",\"name\":\"routed\",\"inputs\":[{\"topic\":\"events\",\"types\":[\"*\"],\"key\":\"function\"}],\"tables\":[{\"name\":\"routed\",\"columns\":[{\"name\":\"n\",\"kind\":\"int\"}]}]}]}")
  (global $manifest_len i32 (i32.const 456))
  (data (i32.const 4096) "panic: boom\n\ngoroutine 1 [running]:\nmain.main()\n")
  (data (i32.const 4160) "first line\nthread 'main' panicked at src/lib.rs:5:9:\nindex out of bounds\n")

  (func (export "ph_abi_v1") (result i32) (i32.const 0))

  (func $alloc (export "ph_alloc") (param $size i32) (result i32)
    (local $at i32) (local $need i32)
    (local.set $at (global.get $heap))
    (global.set $heap (i32.and (i32.add (i32.add (local.get $at) (local.get $size)) (i32.const 15)) (i32.const -16)))
    (local.set $need (i32.sub (i32.add (i32.shr_u (global.get $heap) (i32.const 16)) (i32.const 1)) (memory.size)))
    (if (i32.gt_s (local.get $need) (i32.const 0))
      (then (if (i32.eq (memory.grow (local.get $need)) (i32.const -1)) (then (return (i32.const 0))))))
    (local.get $at))

  (func (export "ph_describe") (result i64)
    (i64.or (i64.shl (i64.const 1024) (i64.const 32)) (i64.extend_i32_u (global.get $manifest_len))))

  ;; The first byte of the config after {"do":" says how ph_init ends.
  (func (export "ph_init") (param $ptr i32) (param $len i32) (result i32)
    (local $c i32)
    (if (i32.gt_u (local.get $len) (i32.const 8))
      (then (local.set $c (i32.load8_u (i32.add (local.get $ptr) (i32.const 7))))))
    (if (i32.eq (local.get $c) (i32.const 117)) (then (unreachable)))            ;; u
    (if (i32.eq (local.get $c) (i32.const 76)) (then (loop $l (br $l))))         ;; L
    (if (i32.eq (local.get $c) (i32.const 110))                                  ;; n
      (then (call $fail (i32.const 7) (local.get $ptr) (local.get $len)) (return (i32.const 3))))
    (if (i32.eq (local.get $c) (i32.const 100))                                  ;; d
      (then (drop (call $done (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))))
    (i32.const 0))

  ;; $str skips a string and returns the address behind it.
  (func $str (param $at i32) (result i32)
    (i32.add (i32.add (local.get $at) (i32.const 4)) (i32.load (local.get $at))))

  (func $data_of (param $entry i32) (result i32) ;; address of the data's length
    (call $str (call $str (call $str (call $str (call $str (i32.add (local.get $entry) (i32.const 56))))))))

  (func (export "ph_apply") (param $ptr i32) (param $len i32) (result i32)
    (local $count i32) (local $i i32) (local $at i32) (local $data i32)
    (local.set $count (i32.load offset=12 (local.get $ptr)))
    (local.set $at (i32.add (local.get $ptr) (i32.const 16)))
    (block $out
      (loop $next
        (br_if $out (i32.ge_u (local.get $i) (local.get $count)))
        (local.set $data (call $data_of (local.get $at)))
        (br_if $out (i32.lt_s
          (call $work (local.get $i) (i32.load8_u offset=4 (local.get $data))
            (i32.add (local.get $data) (i32.const 5)) (i32.sub (i32.load (local.get $data)) (i32.const 1)))
          (i32.const 0)))
        (local.set $at (i32.add (i32.add (local.get $at) (i32.const 4)) (i32.load (local.get $at))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i32.add (local.get $i) (global.get $off)))
  (global $off (mut i32) (i32.const 0)) ;; what ph_apply lies by

  (func (export "ph_keys") (param $ptr i32) (param $len i32) (result i32)
    (local $count i32) (local $i i32) (local $at i32) (local $data i32)
    (local.set $count (i32.load offset=12 (local.get $ptr)))
    (local.set $at (i32.add (local.get $ptr) (i32.const 16)))
    (block $out
      (loop $next
        (br_if $out (i32.ge_u (local.get $i) (local.get $count)))
        (local.set $data (call $data_of (local.get $at)))
        (if (i32.eq (i32.load8_u offset=4 (local.get $data)) (i32.const 117)) (then (unreachable)))
        (br_if $out (i32.lt_s
          (call $keys (local.get $i) (i32.add (local.get $data) (i32.const 5)) (i32.sub (i32.load (local.get $data)) (i32.const 1)))
          (i32.const 0)))
        (local.set $at (i32.add (i32.add (local.get $at) (i32.const 4)) (i32.load (local.get $at))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (local.get $i))

  (func $recurse (param $n i32) (result i32)
    (i32.add (call $recurse (i32.add (local.get $n) (i32.const 1))) (i32.const 1)))

  ;; twice a level: the work doubles with every one
  (func $tree (param $n i32) (result i32)
    (if (result i32) (i32.eqz (local.get $n)) (then (i32.const 1))
      (else (i32.add (call $tree (i32.sub (local.get $n) (i32.const 1))) (call $tree (i32.sub (local.get $n) (i32.const 1)))))))

  (func $spin (loop $l (br $l)))

  (func $grow_all (loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))))

  (func $work (param $i i32) (param $c i32) (param $p i32) (param $n i32) (result i32)
    (local $k i32)
    ;; o: ok, with the rest as ops
    (if (i32.eq (local.get $c) (i32.const 111)) (then (return (call $done (local.get $i) (i32.const 0) (local.get $p) (local.get $n)))))
    ;; i: ignored    I: ignored, with ops
    (if (i32.eq (local.get $c) (i32.const 105)) (then (return (call $done (local.get $i) (i32.const 1) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 73)) (then (return (call $done (local.get $i) (i32.const 1) (local.get $p) (local.get $n)))))
    ;; r: reject, with the rest as reason    f: fatal    y: retry    9: a status there is not
    (if (i32.eq (local.get $c) (i32.const 114)) (then
      (call $fail (i32.const 0) (local.get $p) (local.get $n))
      (return (call $done (local.get $i) (i32.const 2) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 102)) (then (return (call $done (local.get $i) (i32.const 3) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 121)) (then (return (call $done (local.get $i) (i32.const 4) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 57)) (then (return (call $done (local.get $i) (i32.const 9) (i32.const 0) (i32.const 0)))))
    ;; u: unreachable    z: division by zero    a: access out of bounds
    (if (i32.eq (local.get $c) (i32.const 117)) (then (unreachable)))
    (if (i32.eq (local.get $c) (i32.const 122)) (then (return (i32.div_u (i32.const 1) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 97)) (then (return (i32.load (i32.const -8)))))
    ;; L: endless loop    l: reject, then an endless loop    R: endless recursion    B: exponential recursion
    (if (i32.eq (local.get $c) (i32.const 76)) (then (call $spin)))
    (if (i32.eq (local.get $c) (i32.const 108)) (then
      (drop (call $done (local.get $i) (i32.const 2) (i32.const 0) (i32.const 0))) (call $spin)))
    (if (i32.eq (local.get $c) (i32.const 82)) (then (return (call $recurse (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 66)) (then (return (call $tree (i32.const 60)))))
    ;; M: all the memory, then a trap    m: all the memory, then ok    g: one page, then ok
    (if (i32.eq (local.get $c) (i32.const 77)) (then (call $grow_all) (unreachable)))
    (if (i32.eq (local.get $c) (i32.const 109)) (then (call $grow_all)
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 103)) (then (drop (memory.grow (i32.const 1)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 0)))))
    ;; bad pointers: P done at the end of memory, p done with a length that wraps, G get's key, H get's room,
    ;; Q get_many's request, J list's key, X log, F fail, Z random, W fd_write's list and V its bytes
    (if (i32.eq (local.get $c) (i32.const 80)) (then (return (call $done (local.get $i) (i32.const 0) (i32.shl (memory.size) (i32.const 16)) (i32.const 1)))))
    (if (i32.eq (local.get $c) (i32.const 112)) (then (return (call $done (local.get $i) (i32.const 0) (i32.const 16) (i32.const -1)))))
    (if (i32.eq (local.get $c) (i32.const 71)) (then (drop (call $get (i32.const 0) (i32.const -1) (i32.const 4) (i32.const 0) (i32.const 8)))))
    (if (i32.eq (local.get $c) (i32.const 72)) (then (drop (call $get (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))))
    (if (i32.eq (local.get $c) (i32.const 81)) (then (drop (call $get_many (i32.const -4) (i32.const 8) (i32.const 0) (i32.const 8)))))
    (if (i32.eq (local.get $c) (i32.const 74)) (then (drop (call $list (i32.const 1) (i32.const -4) (i32.const 8) (i32.const 0) (i32.const 0) (i32.const 10) (i32.const 0) (i32.const 8)))))
    (if (i32.eq (local.get $c) (i32.const 88)) (then (call $log (i32.const 2) (i32.const -4) (i32.const 8))))
    (if (i32.eq (local.get $c) (i32.const 70)) (then (call $fail (i32.const 2) (i32.const -4) (i32.const 8))))
    (if (i32.eq (local.get $c) (i32.const 90)) (then (call $random (i32.const -4) (i32.const 8))))
    (if (i32.eq (local.get $c) (i32.const 87)) (then
      (i32.store8 (i32.const 0) (call $fd_write (i32.const 1) (i32.const -4) (i32.const 1) (i32.const 8)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 1)))))
    (if (i32.eq (local.get $c) (i32.const 86)) (then
      (i32.store (i32.const 16) (i32.const -4)) (i32.store (i32.const 20) (i32.const 8))
      (i32.store8 (i32.const 0) (call $fd_write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 8)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 1)))))
    ;; order: O the next index, T twice, N never, A some other, C goes on after a negative answer, e returns early,
    ;; v returns one too many, q traps after its answer, D asks for a row after its answer
    (if (i32.eq (local.get $c) (i32.const 79)) (then (return (call $done (i32.add (local.get $i) (i32.const 1)) (i32.const 0) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 84)) (then
      (drop (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 0)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 78)) (then (return (i32.const 0))))
    (if (i32.eq (local.get $c) (i32.const 65)) (then (return (call $done (i32.const 1000) (i32.const 0) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 67)) (then
      (drop (call $done (local.get $i) (i32.const 2) (i32.const 0) (i32.const 0)))
      (loop $l
        (local.set $k (i32.add (local.get $k) (i32.const 1)))
        (drop (call $done (i32.add (local.get $i) (local.get $k)) (i32.const 0) (i32.const 0) (i32.const 0)))
        (br $l))))
    (if (i32.eq (local.get $c) (i32.const 101)) (then (return (i32.const -1))))
    (if (i32.eq (local.get $c) (i32.const 118)) (then (global.set $off (i32.const 1))
      (return (call $done (local.get $i) (i32.const 0) (local.get $p) (local.get $n)))))
    (if (i32.eq (local.get $c) (i32.const 113)) (then
      (drop (call $done (local.get $i) (i32.const 0) (local.get $p) (local.get $n))) (unreachable)))
    (if (i32.eq (local.get $c) (i32.const 68)) (then
      (drop (call $done (local.get $i) (i32.const 0) (local.get $p) (local.get $n)))
      (if (i64.ne (call $get (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 64)) (i64.const -2)) (then (unreachable)))
      (return (i32.const 0))))
    ;; x: exit    b: a reason of a page    s: panics like Go    S: panics like Rust
    (if (i32.eq (local.get $c) (i32.const 120)) (then (call $proc_exit (i32.const 3))))
    (if (i32.eq (local.get $c) (i32.const 98)) (then
      (memory.fill (i32.const 65536) (i32.const 27) (i32.const 60000))
      (call $fail (i32.const 0) (i32.const 65536) (i32.const 60000))
      (return (call $done (local.get $i) (i32.const 2) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 115)) (then (call $print (i32.const 4096) (i32.const 48)) (call $proc_exit (i32.const 2))))
    (if (i32.eq (local.get $c) (i32.const 83)) (then (call $print (i32.const 4160) (i32.const 73)) (unreachable)))
    ;; t: now, the clocks and random bytes as ops
    (if (i32.eq (local.get $c) (i32.const 116)) (then
      (i64.store (i32.const 0) (call $now_us))
      (drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 8)))
      (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 16)))
      (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 24)))
      (call $random (i32.const 32) (i32.const 16))
      (drop (call $random_get (i32.const 48) (i32.const 16)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 64)))))
    ;; c: counts in globals and memory, with the counts as ops
    (if (i32.eq (local.get $c) (i32.const 99)) (then
      (global.set $counter (i64.add (global.get $counter) (i64.const 1)))
      (global.set $half (f64.add (global.get $half) (f64.const 1)))
      (i64.store (i32.const 8192) (i64.add (i64.load (i32.const 8192)) (i64.const 1)))
      (i64.store (i32.const 196608) (i64.add (i64.load (i32.const 196608)) (i64.const 1)))
      (i64.store (i32.const 0) (global.get $counter))
      (f64.store (i32.const 8) (global.get $half))
      (i64.store (i32.const 16) (i64.load (i32.const 8192)))
      (i64.store (i32.const 24) (i64.load (i32.const 196608)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 32)))))
    ;; k: get, with the table from the first digit of the rest and the key behind it; answer and row as ops
    (if (i32.eq (local.get $c) (i32.const 107)) (then
      (i64.store (i32.const 0) (call $get (i32.sub (i32.load8_u (local.get $p)) (i32.const 48))
        (i32.add (local.get $p) (i32.const 1)) (i32.sub (local.get $n) (i32.const 1)) (i32.const 8) (i32.const 16)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 24)))))
    ;; K: get_many, with the rest as request; answer and rows as ops
    (if (i32.eq (local.get $c) (i32.const 75)) (then
      (i64.store (i32.const 0) (call $get_many (local.get $p) (local.get $n) (i32.const 8) (i32.const 64)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 72)))))
    ;; j: list of table 1, with the first byte as limit and the rest as `after`; answer and children as ops
    (if (i32.eq (local.get $c) (i32.const 106)) (then
      (i64.store (i32.const 0) (call $list (i32.const 1) (i32.const 0) (i32.const 0)
        (i32.add (local.get $p) (i32.const 1)) (i32.sub (local.get $n) (i32.const 1)) (i32.load8_u (local.get $p)) (i32.const 8) (i32.const 64)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 72)))))
    ;; w: logs the rest 1000 times    U: uses keys in ph_apply
    (if (i32.eq (local.get $c) (i32.const 119)) (then
      (loop $l
        (call $log (i32.const 2) (local.get $p) (local.get $n))
        (local.set $k (i32.add (local.get $k) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $k) (i32.const 1000))))
      (return (call $done (local.get $i) (i32.const 1) (i32.const 0) (i32.const 0)))))
    (if (i32.eq (local.get $c) (i32.const 85)) (then (return (call $keys (local.get $i) (i32.const 0) (i32.const 0)))))
    ;; n: what WASI answers, as ops: path_open, args_sizes_get, poll_oneoff of one clock
    (if (i32.eq (local.get $c) (i32.const 110)) (then
      (i32.store (i32.const 0) (call $path_open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 64)))
      (i32.store (i32.const 4) (call $args_sizes_get (i32.const 64) (i32.const 68)))
      (i64.store (i32.const 128) (i64.const 42))
      (i32.store (i32.const 8) (call $poll_oneoff (i32.const 128) (i32.const 256) (i32.const 1) (i32.const 12)))
      (i64.store (i32.const 16) (i64.load (i32.const 256)))
      (return (call $done (local.get $i) (i32.const 0) (i32.const 0) (i32.const 24)))))
    ;; E: a stale frame: the 64 bytes behind this frame's end as ops
    (if (i32.eq (local.get $c) (i32.const 69)) (then
      (return (call $done (local.get $i) (i32.const 0) (i32.add (local.get $p) (local.get $n)) (i32.const 64)))))
    (unreachable))

  (func $print (param $p i32) (param $n i32)
    (i32.store (i32.const 512) (local.get $p))
    (i32.store (i32.const 516) (local.get $n))
    (drop (call $fd_write (i32.const 2) (i32.const 512) (i32.const 1) (i32.const 520))))
)
