;; load: export section: .*export "sluice.meter.fuel": names that begin with "sluice.meter." are reserved
;; limit
(global (export "sluice.meter.fuel") (mut i64) (i64.const 9223372036854775807))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
