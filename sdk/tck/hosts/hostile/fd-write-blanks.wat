;; decide: out of fuel
;; IMPORT (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(func $evil (param i32 i32 i64) (result i64)
  (memory.fill (i32.const 300000) (i32.const 32) (i32.const 100000))
  (i32.store (i32.const 299992) (i32.const 300000)) (i32.store (i32.const 299996) (i32.const 4096))
  (loop $l (drop (call $write (i32.const 2) (i32.const 299992) (i32.const 1) (i32.const 4000))) (br $l)) (unreachable))
