;; A plugin that keeps the share of each endpoint, or its capacity with another role; for port 666 it calls $evil.
(module
  (import "sluice" "log" (func $log (param i32 i32 i32)))
  (memory (export "memory") 8)
  (global $brk (mut i32) (i32.const 4096))
  (global $cap (mut i32) (i32.const 0)) ;; of the response buffer

  (func (export "sluice_abi_version") (result i32) (i32.const 0x20001))

  (func $alloc (export "sluice_alloc") (param $n i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $brk))
    (global.set $brk (i32.and (i32.add (i32.add (global.get $brk) (local.get $n)) (i32.const 7)) (i32.const -8)))
    (block $room
      (br_if $room (i32.le_u (global.get $brk) (i32.mul (memory.size) (i32.const 65536))))
      (drop (memory.grow (i32.add (i32.div_u (local.get $n) (i32.const 65536)) (i32.const 1)))))
    (local.get $at))

  ;; Writes a response with the shares of the request; returns its length.
  (func $answer (param $req i32) (param $resp i32) (result i64)
    (local $n i32) (local $i i32) (local $from i32) (local $to i32)
    (local.set $n (i32.load offset=76 (local.get $req)))
    (memory.fill (local.get $resp) (i32.const 0) (i32.const 56))
    (i32.store offset=0 (local.get $resp) (i32.const 0x50524C53))
    (i32.store offset=4 (local.get $resp) (i32.add (i32.const 56) (i32.mul (local.get $n) (i32.const 16))))
    (i32.store offset=8 (local.get $resp) (i32.const 56))
    (i32.store offset=12 (local.get $resp) (i32.const 56))
    (i32.store offset=16 (local.get $resp) (local.get $n))
    (i32.store offset=20 (local.get $resp) (i32.const 16))
    (local.set $from (i32.add (local.get $req) (i32.load offset=72 (local.get $req))))
    (local.set $to (i32.add (local.get $resp) (i32.const 56)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
        (i32.store offset=0 (local.get $to) (i32.load offset=36 (local.get $from)))
        (i32.store offset=4 (local.get $to) (i32.const 0))
        (i32.store offset=8 (local.get $to) (i32.const -1))
        (i32.store offset=12 (local.get $to) (i32.const 0xffff))
        (local.set $from (i32.add (local.get $from) (i32.load offset=80 (local.get $req))))
        (local.set $to (i32.add (local.get $to) (i32.const 16)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i64.extend_i32_u (i32.load offset=4 (local.get $resp))))

  (func (export "sluice_decide") (param $req i32) (param $len i32) (param $resp i32) (param $cap i32) (result i64)
    (local $size i64)
    (global.set $cap (local.get $cap))
    (local.set $size (call $answer (local.get $req) (local.get $resp)))
    (if (i32.eq (i32.load16_u offset=52 (local.get $req)) (i32.const 666))
      (then (return (call $evil (local.get $req) (local.get $resp) (local.get $size)))))
    (local.get $size))

  ;; $evil gets the request, a valid response and its length, and returns the result of sluice_decide.
  ;; EVIL
)
