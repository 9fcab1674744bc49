  ;; Settings are {"c":"X"}. For port 666 a digit is the weight of all endpoints. Other characters are kinds of misbehavior.
  (global $count (mut i32) (i32.const 0)) ;; of handles
  (global $calls (mut i32) (i32.const 0)) ;; of $evil

  (func (export "sluice_configure") (param $at i32) (param $len i32) (result i32)
    (local $c i32)
    (local.set $c (i32.load8_u offset=6 (local.get $at)))
    (if (i32.eq (local.get $c) (i32.const 116)) (then (unreachable)))                      ;; t: traps
    (if (i32.eq (local.get $c) (i32.const 108)) (then (loop $l (br $l))))                  ;; l: never ends
    (if (i32.eq (local.get $c) (i32.const 110)) (then (return (i32.const -1))))            ;; n: refuses
    (if (i32.and (i32.eq (local.get $c) (i32.const 104)) (i32.gt_u (global.get $count) (i32.const 0)))
      (then (unreachable)))                                                                ;; h: traps if there are others
    (i32.store8 (i32.add (i32.const 0x60000) (global.get $count)) (local.get $c))
    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    (if (i32.eq (local.get $c) (i32.const 115)) (then (return (i32.const 0))))             ;; s: returns the first handle again
    (i32.sub (global.get $count) (i32.const 1)))

  ;; k: declares a key
  (data (i32.const 16) "service-label:a")
  (func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
    (if (i32.eq (local.get $handle) (i32.const -1)) (then (return (i32.const 0))))
    (if (i32.ne (i32.load8_u (i32.add (i32.const 0x60000) (local.get $handle))) (i32.const 107)) (then (return (i32.const 0))))
    (memory.copy (local.get $to) (i32.const 16) (i32.const 15))
    (i32.const 15))

  ;; o: needs outcomes
  (func (export "sluice_needs") (param $handle i32) (result i32)
    (if (i32.eq (local.get $handle) (i32.const -1)) (then (return (i32.const 0))))
    (i32.shl (i32.eq (i32.load8_u (i32.add (i32.const 0x60000) (local.get $handle))) (i32.const 111)) (i32.const 1)))

  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (local $c i32) (local $i i32) (local $to i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (local.set $c (i32.const 49))
    (if (i32.ne (i32.load offset=60 (local.get $req)) (i32.const -1))
      (then (local.set $c (i32.load8_u (i32.add (i32.const 0x60000) (i32.load offset=60 (local.get $req)))))))
    (if (i32.eq (local.get $c) (i32.const 100)) (then (unreachable)))                      ;; d: traps in decisions
    (if (i32.eq (local.get $c) (i32.const 105))
      (then (local.set $c (i32.add (i32.const 48) (global.get $calls)))))                  ;; i: counts calls
    (local.set $to (i32.add (local.get $resp) (i32.const 56)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (i32.load offset=76 (local.get $req))))
        (i32.store (local.get $to) (i32.sub (local.get $c) (i32.const 48)))
        (local.set $to (i32.add (local.get $to) (i32.const 16)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (local.get $size))
