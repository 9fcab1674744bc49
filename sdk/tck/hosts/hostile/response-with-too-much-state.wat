;; decide: response: state is 1025 bytes
(func $evil (param i32 i32 i64) (result i64)
  (i32.store offset=36 (local.get 1) (i32.const 1025)) (local.get 2))
