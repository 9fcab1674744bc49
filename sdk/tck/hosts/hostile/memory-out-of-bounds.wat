;; decide: sluice_decide: wasm error: out of bounds memory access
(func $evil (param i32 i32 i64) (result i64) (i64.load offset=4294967295 (i32.const -1)))
