;; decide: out of fuel
(data $d "0123456789abcdef0123456789abcdef")
(func $evil (param i32 i32 i64) (result i64)
  (loop $l (memory.init $d (i32.const 0) (i32.const 0) (i32.const 32)) (br $l)) (unreachable))
