;; decide: response: 0 bytes, shorter than the header of 56
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
