  ;; role: reduce
  ;; Halves the capacity of the first endpoint; the last one gets that of an ordinary endpoint.
  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (i32.store offset=56 (local.get $resp) (i32.div_u (i32.load offset=56 (local.get $resp)) (i32.const 2)))
    (i32.store (i32.sub (i32.add (local.get $resp) (i32.wrap_i64 (local.get $size))) (i32.const 16)) (i32.const 1000000))
    (local.get $size))
