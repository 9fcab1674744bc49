;; load: import "log" of "sluice" has type \(i64\) -> \(\), want \(i32 i32 i32\) -> \(\)
;; IMPORT (import "sluice" "log" (func $log2 (param i64)))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
