;; load: code section: function \d+: at byte \d+: more than 3000 nested blocks
;; limit
(func $evil (param i32 i32 i64) (result i64)
  @5000 (block@ @5000 )@ (i64.const 0))
