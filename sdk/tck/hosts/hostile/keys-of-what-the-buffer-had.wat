;; load: sluice_keys: key 0: "\\x00
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (i32.const 100))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
