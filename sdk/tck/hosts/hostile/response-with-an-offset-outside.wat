;; decide: response: results: 48 bytes at offset 4294967292
(func $evil (param i32 i32 i64) (result i64) (i32.store offset=12 (local.get 1) (i32.const -4)) (local.get 2))
