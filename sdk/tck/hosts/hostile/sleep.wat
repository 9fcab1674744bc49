;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (drop (call $poll (i32.const 0) (i32.const 1024) (i32.const 8) (i32.const 4000))) (br $l)) (unreachable))
;; IMPORT (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
