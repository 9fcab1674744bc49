;; decide: sluice_decide: wasm error: invalid table access
(type $t (func))
(table 1 funcref)
(func $evil (param i32 i32 i64) (result i64) (call_indirect (type $t) (i32.const 0)) (i64.const 0))
