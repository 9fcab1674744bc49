;; decide: sluice_decide: sluice.log: 1024 bytes at address 4294967295 are outside the guest's memory
(func $evil (param i32 i32 i64) (result i64) (call $log (i32.const 3) (i32.const -1) (i32.const 100000)) (i64.const 0))
