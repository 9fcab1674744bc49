;; decide: out of fuel
(table $t 50000 externref)
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (table.fill $t (i32.const 0) (ref.null extern) (i32.const 50000)) (br $l)) (unreachable))
