;; load: sluice_needs: out of fuel
(func (export "sluice_needs") (param i32) (result i32) (loop $l (br $l)) (unreachable))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
