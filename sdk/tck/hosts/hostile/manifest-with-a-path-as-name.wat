;; load: "../../etc/passwd" is not a name
;; section: {"manifest":1,"title":"t","version":"1","licence":"MIT","role":"share","settings":[{"name":"../../etc/passwd","type":"text","text":"t"}]}
(module (memory (export "memory") 1)
  (func (export "sluice_abi_version") (result i32) (i32.const 0x20001))
  (func (export "sluice_alloc") (param i32) (result i32) (i32.const 8))
  (func (export "sluice_decide") (param i32 i32 i32 i32) (result i64) (i64.const 0)))
