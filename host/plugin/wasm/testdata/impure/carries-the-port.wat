;; The weight is the port of the request before.
;; load: has two answers: .* the value (80|443|9000)[ ,]
(global $port (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (global.get $port))
  (global.set $port (i32.load16_u offset=52 (local.get $req)))
  (local.get $size))
