;; load: sluice_needs asks for Pod labels and annotations \(bit 0x2\): reserved, this host does not provide them
(func (export "sluice_needs") (result i32) (i32.const 2))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
