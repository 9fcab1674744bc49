;; decide: returned a length of 9223372036854775807 bytes
(func $evil (param i32 i32 i64) (result i64) (i64.const 9223372036854775807))
