;; load: sluice_keys: error code -2147483648
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (i32.const 0x80000000))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
