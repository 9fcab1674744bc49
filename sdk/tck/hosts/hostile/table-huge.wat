;; load: table section: .* table 0 has a minimum of 4000000000 elements, the limit is 100000
;; limit
(table $t 4000000000 externref)
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
