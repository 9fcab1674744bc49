;; load: settings: the plugin accepts none
;; settings: {"a": 1}
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
