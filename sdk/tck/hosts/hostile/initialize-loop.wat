;; load: _initialize: out of fuel: the budget is 199\d{6}
(func (export "_initialize") (loop $l (br $l)))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
