;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64) (memory.fill (i32.const 0) (i32.const 0) (i32.const -1)) (i64.const 0))
