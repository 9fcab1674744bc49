;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64) (loop $l (drop (memory.grow (i32.const 1))) (br $l)) (unreachable))
