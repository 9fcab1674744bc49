  ;; Generation 1 makes the instance remember it, and traps; a later generation traps only in that instance.
  (global $failed (mut i32) (i32.const 0))
  (data (i32.const 16) "this instance has trapped before, and is called again")
  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (if (global.get $failed) (then (call $log (i32.const 3) (i32.const 16) (i32.const 53)) (unreachable)))
    (if (i64.eq (i64.load offset=24 (local.get $req)) (i64.const 1)) (then (global.set $failed (i32.const 1)) (unreachable)))
    (local.get $size))
