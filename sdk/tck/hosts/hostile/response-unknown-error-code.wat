;; decide: sluice_decide: error code -9223372036854775808
(func $evil (param i32 i32 i64) (result i64) (i64.const -9223372036854775808))
