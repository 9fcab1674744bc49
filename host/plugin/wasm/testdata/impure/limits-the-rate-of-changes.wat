;; The weight of the first answer, until 10 s have passed.
;; load: has two answers
(global $last (mut i64) (i64.const 0))
(global $weight (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i64.gt_u (i64.load offset=16 (local.get $req)) (i64.add (global.get $last) (i64.const 10000)))
    (then (global.set $last (i64.load offset=16 (local.get $req)))
          (global.set $weight (i32.load offset=76 (local.get $req)))))
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (global.get $weight))
  (local.get $size))
