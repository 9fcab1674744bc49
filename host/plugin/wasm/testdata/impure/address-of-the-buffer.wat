;; load: has two answers
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.and (i32.shr_u (local.get $resp) (i32.const 3)) (i32.const 0xffff)))
  (local.get $size))
