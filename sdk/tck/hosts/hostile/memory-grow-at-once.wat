;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64) (drop (memory.grow (i32.const 65000))) (i64.const 0))
