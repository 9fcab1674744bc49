;; load: sluice_configure: .*unreachable
;; settings: {"a": 1}
(func (export "sluice_configure") (param i32 i32) (result i32) (unreachable))
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
