;; decide: out of fuel
(table $t 1 funcref)
(func $evil (param i32 i32 i64) (result i64) (drop (table.grow $t (ref.null func) (i32.const -2))) (i64.const 0))
