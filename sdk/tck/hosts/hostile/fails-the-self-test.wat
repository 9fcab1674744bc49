;; load: self-test: .*sluice_decide: the plugin could not read the request
;; always
(func $evil (param i32 i32 i64) (result i64) (i64.const -2))
