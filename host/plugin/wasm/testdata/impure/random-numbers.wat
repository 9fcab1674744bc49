;; Random numbers are the same in each call.
;; IMPORT (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
;; pure
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (drop (call $random (i32.add (local.get $resp) (i32.const 56)) (i32.const 1)))
  (local.get $size))
