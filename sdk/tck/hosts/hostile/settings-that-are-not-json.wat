;; load: settings: invalid JSON
;; settings: {"a":
(func (export "sluice_configure") (param i32 i32) (result i32) (i32.const 0))
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
