  ;; Gives the first endpoint seven times its share. Traps if session affinity has a timeout, and returns a wrong length if that is an hour.
  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (if (i64.eq (i64.load offset=64 (local.get $req)) (i64.const 3600000)) (then (return (i64.sub (local.get $size) (i64.const 1)))))
    (if (i64.ne (i64.load offset=64 (local.get $req)) (i64.const 0)) (then (unreachable)))
    (i32.store offset=56 (local.get $resp) (i32.const 7000000))
    (local.get $size))
