;; decide: sluice_decide: called proc_exit\(3\): "going"
(data (i32.const 16) "going\n")
(data (i32.const 32) "\10\00\00\00\06\00\00\00")
(func $evil (param i32 i32 i64) (result i64)
  (drop (call $write (i32.const 2) (i32.const 32) (i32.const 1) (i32.const 64)))
  (call $exit (i32.const 3)) (i64.const 0))
;; IMPORT (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
;; IMPORT (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
