;; A guest of version 2.0, which may ask for every input of that version.
;; version: 0x20000
;; section: {"manifest":1,"title":"a test","version":"0","licence":"Apache-2.0","role":"share","needs":["connections","outcomes","nodes","podNames","podLabels","podAnnotations","podCPU","serviceLabels","serviceAnnotations"],"settings":null}
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
