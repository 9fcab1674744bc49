;; IMPORT (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
;; pure
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 1024)))
  (i32.store offset=56 (local.get $resp) (i32.load16_u (i32.const 1024)))
  (local.get $size))
