;; load: "1 endpoint" has two answers: endpoint 10.0.0.0:8080 gets the value 1 and the value 21, .* each twice in a row
(global $n (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (global.set $n (i32.add (global.get $n) (i32.const 1)))
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (global.get $n))
  (local.get $size))
