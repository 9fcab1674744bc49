;; load: sluice_keys: \d+ keys, more than 16
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.fill (local.get $to) (i32.const 10) (local.get $room)) (local.get $room))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
