;; load: sluice_keys: out of fuel
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (loop $l (br $l)) (unreachable))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
