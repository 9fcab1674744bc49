;; decide: sluice_decide: out of fuel: it may use 10060000
(func $evil (param i32 i32 i64) (result i64) (loop $l (br $l)) (unreachable))
