;; load: code section: .*function \d+.*: a body of \d+ bytes, the limit is 65536
;; limit
(func $evil (param i32 i32 i64) (result i64)
  (local $x i64) @220000 (local.set $x (i64.const 1))@ (i64.const 0))
