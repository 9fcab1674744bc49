;; load: settings refused: the plugin returned an error: "no such setting"
;; settings: {"a": 1}
(data (i32.const 16) "no such setting")
(func (export "sluice_configure") (param i32 i32) (result i32)
  (call $log (i32.const 3) (i32.const 16) (i32.const 15)) (i32.const -1))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
