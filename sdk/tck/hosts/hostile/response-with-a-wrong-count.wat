;; decide: response: result count is 4294967295, but there are 3 endpoints
(func $evil (param i32 i32 i64) (result i64) (i32.store offset=16 (local.get 1) (i32.const -1)) (local.get 2))
