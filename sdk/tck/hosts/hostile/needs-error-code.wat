;; load: sluice_needs: the plugin is not configured
(func (export "sluice_needs") (param i32) (result i32) (i32.const -4))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
