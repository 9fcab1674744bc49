;; load: sluice_keys: 17 keys, more than 16
(data (i32.const 16) "label:k0\nlabel:k1\nlabel:k2\nlabel:k3\nlabel:k4\nlabel:k5\nlabel:k6\nlabel:k7\nlabel:k8\nlabel:k9\nlabel:k10\nlabel:k11\nlabel:k12\nlabel:k13\nlabel:k14\nlabel:k15\nlabel:k16")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.copy (local.get $to) (i32.const 16) (i32.const 159)) (i32.const 159))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
