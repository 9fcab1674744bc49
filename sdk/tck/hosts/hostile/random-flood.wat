;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (drop (call $random (i32.const 0) (i32.const 500000))) (br $l)) (unreachable))
;; IMPORT (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
