;; load: code section: function \d+: at byte \d+: more than 1000 loops
;; limit
(func $evil (param i32 i32 i64) (result i64)
  @2000 (loop (br_if 0 (i32.const 0)))@ (i64.const 0))
