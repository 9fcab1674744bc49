;; load: sluice_needs asks for connection counts \(bit 0x1\): reserved, this host does not provide them
(func (export "sluice_needs") (result i32) (i32.const 5))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
