;; decide: sluice_decide: out of fuel: the budget is 20060000
(func $evil (param i32 i32 i64) (result i64) (loop $l (br $l)) (unreachable))
