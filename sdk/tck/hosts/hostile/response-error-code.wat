;; decide: sluice_decide: the plugin returned an error
(func $evil (param i32 i32 i64) (result i64) (i64.const -1))
