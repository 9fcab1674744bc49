;; load: import section: .*import "g" of "env" is a global: only functions can be imported
;; IMPORT (import "env" "g" (global i32))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
