;; decide: sluice_decide: call stack exhausted
(func $f (param i32) (result i32) (i32.add (call $f (local.get 0)) (i32.const 1)))
(func $evil (param i32 i32 i64) (result i64) (i64.extend_i32_u (call $f (i32.const 1))))
