;; load: sluice_configure: out of fuel
;; settings: {"a": 1}
(func (export "sluice_configure") (param i32 i32) (result i32) (loop $l (br $l)) (unreachable))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
