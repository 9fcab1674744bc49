;; decide: response: total length is 104, but 103 bytes were returned
(func $evil (param i32 i32 i64) (result i64) (i64.sub (local.get 2) (i64.const 1)))
