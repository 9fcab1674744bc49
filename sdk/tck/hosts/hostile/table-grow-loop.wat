;; decide: out of fuel
(table $t 1 externref)
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (drop (table.grow $t (ref.null extern) (i32.const 10000))) (br $l)) (unreachable))
