;; decide: response: magic is 0x7ff80000
(func $evil (param i32 i32 i64) (result i64)
  (f32.store (local.get 1) (f32.const nan)) (i32.store (local.get 1) (i32.const 0x7ff80000)) (local.get 2))
