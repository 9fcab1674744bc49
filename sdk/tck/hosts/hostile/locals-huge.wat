;; load: code section: function \d+: at byte 4: at least 3003 locals, the limit is 2000
;; limit
(func $evil (param i32 i32 i64) (result i64) (local @3000 i32@) (i64.const 0))
