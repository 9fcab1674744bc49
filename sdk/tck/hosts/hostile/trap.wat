;; decide: sluice_decide: wasm error: unreachable
(func $evil (param i32 i32 i64) (result i64) (unreachable))
