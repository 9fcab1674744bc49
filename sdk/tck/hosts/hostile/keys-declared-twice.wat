;; load: sluice_keys: key 2: "label:a" is declared twice
(data (i32.const 16) "label:a\nlabel:b\nlabel:a")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.copy (local.get $to) (i32.const 16) (i32.const 23)) (i32.const 23))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
