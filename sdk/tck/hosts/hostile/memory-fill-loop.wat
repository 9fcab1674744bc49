;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (memory.fill (i32.const 0) (i32.const 7) (i32.const 500000)) (br $l)) (unreachable))
