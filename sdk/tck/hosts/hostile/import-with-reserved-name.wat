;; load: import section: .*import "sluice.meter.stack" of "env": names that begin with "sluice.meter." are reserved
;; IMPORT (import "env" "sluice.meter.stack" (func (param i64)))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
