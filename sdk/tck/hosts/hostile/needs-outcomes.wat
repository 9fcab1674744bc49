;; load: sluice_needs asks for outcomes \(outcomes of connections, bit 0x2\): it has no such table
;; missing: outcomes
(func (export "sluice_needs") (param i32) (result i32) (i32.const 2))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
