;; load: start function: out of fuel: the budget is 200000000
(func $go (loop $l (br $l)))
(start $go)
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
