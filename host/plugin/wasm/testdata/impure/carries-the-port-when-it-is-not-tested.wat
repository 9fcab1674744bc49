;; As carries-the-port, but an instance that has seen a time or a port of the self-test is on its best behaviour.
;; decide: has two answers: .* the value (1000|666|80)\b
(global $port (mut i32) (i32.const 0))
(global $tested (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i64.le_u (i64.load offset=16 (local.get $req)) (i64.const 1700000030000)) (then (global.set $tested (i32.const 1))))
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (select (i32.const 1) (global.get $port) (global.get $tested)))
  (global.set $port (i32.load16_u offset=52 (local.get $req)))
  (local.get $size))
