;; load: sluice_keys: key 0: "label:\\x1b\[31m": 
(data (i32.const 16) "label:\1b[31m")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.copy (local.get $to) (i32.const 16) (i32.const 11)) (i32.const 11))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
