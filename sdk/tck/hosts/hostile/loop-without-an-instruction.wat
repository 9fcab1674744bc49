;; decide: out of fuel
(func $evil (param i32 i32 i64) (result i64)
  (loop $a (loop $b (br_if $b (i32.const 1))) (br $a)) (i64.const 0))
