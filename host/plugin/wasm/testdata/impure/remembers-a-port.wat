;; Other weights since a certain port was seen.
;; decide: has two answers
(global $seen (mut i32) (i32.const 0))
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.add (i32.const 1) (global.get $seen)))
  (if (i32.eq (i32.load16_u offset=52 (local.get $req)) (i32.const 666)) (then (global.set $seen (i32.const 1))))
  (local.get $size))
