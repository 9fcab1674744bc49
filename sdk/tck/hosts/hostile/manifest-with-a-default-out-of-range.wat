;; load: settings.a.default: 9 is not 1 to 5
;; section: {"manifest":1,"title":"t","version":"1","licence":"MIT","role":"share","settings":[{"name":"a","type":"integer","min":1,"max":5,"default":9,"text":"t"}]}
(module (memory (export "memory") 1)
  (func (export "sluice_abi_version") (result i32) (i32.const 0x20001))
  (func (export "sluice_alloc") (param i32) (result i32) (i32.const 8))
  (func (export "sluice_decide") (param i32 i32 i32 i32) (result i64) (i64.const 0)))
