;; The weight tells whether the Service is larger than the one before.
;; load: has two answers
(global $before (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.gt_u (i32.load offset=76 (local.get $req)) (global.get $before)))
  (global.set $before (i32.load offset=76 (local.get $req)))
  (local.get $size))
