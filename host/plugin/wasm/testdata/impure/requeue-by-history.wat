;; load: has two answers: requeue after
(global $n (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (global.set $n (i32.add (global.get $n) (i32.const 1000)))
  (i32.store offset=24 (local.get $resp) (global.get $n))
  (local.get $size))
