;; The host clears what an earlier, longer request has left behind this one.
;; pure
(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
  (if (i32.eqz (i32.load offset=76 (local.get $req))) (then (return (local.get $size)))) ;; no endpoint
  (i32.store offset=56 (local.get $resp) (i32.and (i32.const 0xffff)
    (i32.load offset=52 (i32.add (local.get $req) (i32.load offset=8 (local.get $req))))))
  (local.get $size))
