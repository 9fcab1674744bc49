;; decide: out of fuel
(func $f (param i32)
  (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))) (call $f (i32.sub (local.get 0) (i32.const 1))))))
(func $evil (param i32 i32 i64) (result i64) (call $f (i32.const 40)) (i64.const 0))
