;; decide: reason is 0, but there are 0 reasons
(func $evil (param i32 i32 i64) (result i64) (i32.store16 offset=68 (local.get 1) (i32.const 0)) (local.get 2))
