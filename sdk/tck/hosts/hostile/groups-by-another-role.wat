;; role: locality
;; decide: answer has groups, which are not for a plugin of role locality
(func $evil (param i32 i32 i64) (result i64)
  (i32.store (i32.add (local.get 1) (i32.wrap_i64 (local.get 2))) (i32.const 1))
  (i32.store offset=4 (i32.add (local.get 1) (i32.wrap_i64 (local.get 2))) (i32.const 0))
  (i32.store offset=48 (local.get 1) (i32.wrap_i64 (local.get 2)))
  (i32.store offset=52 (local.get 1) (i32.const 1))
  (local.set 2 (i64.add (local.get 2) (i64.const 8)))
  (i32.store offset=4 (local.get 1) (i32.wrap_i64 (local.get 2)))
  (local.get 2))
