;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (call $log (i32.const 3) (i32.const 0) (i32.const 100000)) (br $l)) (unreachable))
