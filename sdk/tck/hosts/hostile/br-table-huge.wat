;; load: code section: function \d+: at byte \d+: 8193 labels of br_table, the limit is 8192
;; limit
(func $evil (param i32 i32 i64) (result i64)
  (block $b (br_table @8193 $b@ $b (i32.const 0))) (i64.const 0))
