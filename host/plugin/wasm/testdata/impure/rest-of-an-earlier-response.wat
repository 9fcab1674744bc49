;; The host clears the response buffer.
;; pure
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.load8_u offset=48 (i32.add (local.get $resp) (i32.wrap_i64 (local.get $size)))))
  (local.get $size))
