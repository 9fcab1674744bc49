;; The memory grows with each large Service.
;; load: has two answers
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (memory.size))
  (if (i32.ge_u (i32.load offset=76 (local.get $req)) (i32.const 100)) (then (drop (memory.grow (i32.const 1)))))
  (local.get $size))
