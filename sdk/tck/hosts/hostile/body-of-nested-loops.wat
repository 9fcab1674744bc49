;; load: more than 64 nested loops
;; limit
(func $evil (param i32 i32 i64) (result i64)
  @65 (loop@ @65 )@ (i64.const 0))
