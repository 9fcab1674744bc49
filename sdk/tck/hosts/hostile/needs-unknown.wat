;; load: sluice_needs asks for unknown inputs: bits 0x40000000
(func (export "sluice_needs") (param i32) (result i32) (i32.const 0x40000003))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
