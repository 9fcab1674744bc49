;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (block $b (br_table $l $l $b $l (i32.const 1)))) (i64.const 0))
