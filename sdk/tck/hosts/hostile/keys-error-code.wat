;; load: sluice_keys: the plugin returned an error: "no keys today"
(data (i32.const 16) "no keys today")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (call $log (i32.const 3) (i32.const 16) (i32.const 13)) (i32.const -1))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
