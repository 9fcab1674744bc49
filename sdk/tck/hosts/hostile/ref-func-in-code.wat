;; load: ref.func in code is not supported
;; limit
(elem declare func $f)
(func $f)
(func $evil (param i32 i32 i64) (result i64) (loop $l (drop (ref.func $f)) (br $l)) (unreachable))
