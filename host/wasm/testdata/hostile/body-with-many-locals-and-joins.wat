;; load: too expensive to compile: \d+ instructions, 0 calls, 0 loads and stores, 1803 locals × \d+ joins
(func $evil (param i32 i32 i64) (result i64)
  (local @1800 i32@)
  @1000 (if (local.get 3) (then (local.set 4 (i32.const 1))))@ (i64.const 0))
