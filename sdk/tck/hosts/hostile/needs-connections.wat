;; load: sluice_needs asks for connections \(numbers of established connections, bit 0x1\): it has no such table
;; missing: connections
(func (export "sluice_needs") (param i32) (result i32) (i32.const 1))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
