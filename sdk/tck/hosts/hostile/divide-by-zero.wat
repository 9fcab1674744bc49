;; decide: sluice_decide: wasm error: integer divide by zero
(func $evil (param i32 i32 i64) (result i64) (i64.div_u (local.get 2) (i64.const 0)))
