;; load: export "sluice_needs" has type \(\) -> \(i32\), want \(i32\) -> \(i32\)
(func (export "sluice_needs") (result i32) (i32.const 0))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
