;; load: it has ABI version 2\.0, and its manifest lists what a later version has added: endpointState \(2\.1\): rebuild
;; version: 0x20000
;; section: {"manifest":1,"title":"a test","version":"0","licence":"Apache-2.0","role":"share","needs":["outcomes","endpointState"],"settings":null}
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
