;; Keeps the share of each endpoint.
(func $evil (param i32 i32 i64) (result i64) (local.get 2))
