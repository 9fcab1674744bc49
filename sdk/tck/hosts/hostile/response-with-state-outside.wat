;; decide: response: state: 1024 bytes at offset 4294967040
(func $evil (param i32 i32 i64) (result i64)
  (i32.store offset=32 (local.get 1) (i32.const 0xffffff00)) (i32.store offset=36 (local.get 1) (i32.const 1024)) (local.get 2))
