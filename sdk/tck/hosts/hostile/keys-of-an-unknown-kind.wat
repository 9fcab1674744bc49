;; load: sluice_keys: key 1: "colour:red" is of an unknown kind
(data (i32.const 16) "label:a\ncolour:red")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.copy (local.get $to) (i32.const 16) (i32.const 18)) (i32.const 18))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
