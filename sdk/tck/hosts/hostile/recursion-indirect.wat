;; decide: call stack exhausted
(type $t (func))
(table 1 funcref)
(elem (i32.const 0) $f)
(func $f (call_indirect (type $t) (i32.const 0)))
(func $evil (param i32 i32 i64) (result i64) (call $f) (i64.const 0))
