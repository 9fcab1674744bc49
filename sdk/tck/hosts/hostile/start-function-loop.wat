;; load: start function: out of fuel: the budget is 199\d{6}
(func $go (loop $l (br $l)))
(start $go)
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
