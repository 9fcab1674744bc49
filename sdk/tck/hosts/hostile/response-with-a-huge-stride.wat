;; decide: response: results: 12884901864 bytes at offset 56
(func $evil (param i32 i32 i64) (result i64) (i32.store offset=20 (local.get 1) (i32.const 0xfffffff8)) (local.get 2))
