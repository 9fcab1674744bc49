;; load: sluice_keys: returned a length of 5393 bytes for a buffer of 5392
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (i32.add (local.get $room) (i32.const 1)))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
