;; Another weight after 1000 calls.
;; decide: has two answers: endpoint 10.0.0.0:8080 gets the value (7 and the value 1|1 and the value 7)
(global $n (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (global.set $n (i32.add (global.get $n) (i32.const 1)))
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (select (i32.const 7) (i32.const 1) (i32.gt_u (global.get $n) (i32.const 1000))))
  (local.get $size))
