;; decide: out of fuel
(table $t 50000 externref)
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (table.copy $t $t (i32.const 0) (i32.const 1) (i32.const 49000)) (br $l)) (unreachable))
