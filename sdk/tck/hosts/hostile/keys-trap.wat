;; load: sluice_keys: .*unreachable
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (unreachable))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
