;; load: too expensive to compile: \d+ instructions with 0 calls, 1803 locals, \d+ blocks and \d+ edges between them make \d+
;; limit
(func $evil (param i32 i32 i64) (result i64)
  (local @1800 i32@)
  @1000 (if (local.get 3) (then (local.set 4 (i32.const 1))))@ (i64.const 0))
