;; Random numbers whose seed is every request so far.
;; load: has two answers
(global $seed (mut i32) (i32.const 1))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (global.set $seed (i32.add (i32.mul (i32.xor (global.get $seed) (i32.load16_u offset=52 (local.get $req))) (i32.const 1664525)) (i32.const 1013904223)))
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.and (i32.shr_u (global.get $seed) (i32.const 16)) (i32.const 0xff)))
  (local.get $size))
