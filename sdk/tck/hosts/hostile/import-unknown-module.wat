;; load: import "exec" of "env": plugins can import from "sluice" and "wasi_snapshot_preview1" only
;; IMPORT (import "env" "exec" (func (param i32)))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
