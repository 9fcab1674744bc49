;; decide: outside the guest's memory
(func $evil (param i32 i32 i64) (result i64)
  (drop (call $write (i32.const 1) (i32.const -8) (i32.const 64) (i32.const -4))) (i64.const 0))
;; IMPORT (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
