  ;; Two groups with the parts 1 and 3, the first endpoint alone in the first one; the second endpoint has three times its share.
  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (local $i i32) (local $end i32)
    (local.set $end (i32.wrap_i64 (local.get $size)))
    (local.set $i (i32.const 72))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $end)))
        (i32.store16 offset=14 (i32.add (local.get $resp) (local.get $i)) (i32.const 1))
        (local.set $i (i32.add (local.get $i) (i32.const 16)))
        (br $next)))
    (i32.store offset=72 (local.get $resp) (i32.mul (i32.load offset=72 (local.get $resp)) (i32.const 3)))
    (i64.store (i32.add (local.get $resp) (local.get $end)) (i64.const 1))
    (i64.store offset=8 (i32.add (local.get $resp) (local.get $end)) (i64.const 3))
    (i32.store offset=48 (local.get $resp) (local.get $end))
    (i32.store offset=52 (local.get $resp) (i32.const 2))
    (i32.store offset=4 (local.get $resp) (i32.add (local.get $end) (i32.const 16)))
    (i64.add (local.get $size) (i64.const 16)))
