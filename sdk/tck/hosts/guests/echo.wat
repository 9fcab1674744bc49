  ;; Settings are {"a": "HEX"}: bytes in hexadecimal digits. The first 4 are the answer of sluice_needs, the next 4 the length of the text of
  ;; sluice_keys, which follows, all little-endian. The rest is the response for port 666; without it, that is an echo of the request.
  ;;
  ;; The echo keeps the shares. Its state has the first 1024 bytes of the request, and the reason of endpoint i the 128 bytes from
  ;; 1024 + 128 i on, in hexadecimal digits. A request that is longer than 1024 + 128 × min(endpoints, 16) gets shares that are digests of the
  ;; endpoints instead: 1 + (h & 0x7fffffff), where h is the FNV-1a of 32 bits of the endpoint's record without ids, indexes and connections (bytes 0 to
  ;; 17, 20 to 23, 32 to 55 and 64 to 71), and of the names of its node and its zone.

  ;; The table of handles, from address 64 on: the address of what was decoded, after its length.
  (global $handles (mut i32) (i32.const 0))
  (func $told (param $handle i32) (result i32)
    (if (i32.ge_u (local.get $handle) (global.get $handles)) (then (unreachable)))
    (i32.load (i32.add (i32.const 64) (i32.mul (local.get $handle) (i32.const 4)))))

  (func $digit (param $c i32) (result i32)
    (if (i32.lt_u (i32.sub (local.get $c) (i32.const 48)) (i32.const 10)) (then (return (i32.sub (local.get $c) (i32.const 48)))))
    (if (i32.lt_u (i32.sub (local.get $c) (i32.const 97)) (i32.const 6)) (then (return (i32.sub (local.get $c) (i32.const 87)))))
    (i32.const -1))

  (func (export "sluice_configure") (param $at i32) (param $len i32) (result i32)
    (local $end i32) (local $to i32) (local $start i32)
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    (loop $colon ;; up to the colon
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (return (i32.const -1))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $colon (i32.ne (i32.load8_u (i32.sub (local.get $at) (i32.const 1))) (i32.const 58))))
    (loop $quote ;; up to the quotation mark
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (return (i32.const -1))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $quote (i32.ne (i32.load8_u (i32.sub (local.get $at) (i32.const 1))) (i32.const 34))))
    (local.set $start (call $alloc (i32.add (local.get $len) (i32.const 8))))
    (local.set $to (i32.add (local.get $start) (i32.const 4)))
    (block $done
      (loop $pair
        (br_if $done (i32.lt_s (call $digit (i32.load8_u (local.get $at))) (i32.const 0)))
        (i32.store8 (local.get $to) (i32.or
          (i32.shl (call $digit (i32.load8_u (local.get $at))) (i32.const 4))
          (call $digit (i32.load8_u offset=1 (local.get $at)))))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (local.set $at (i32.add (local.get $at) (i32.const 2)))
        (br $pair)))
    (i32.store (local.get $start) (i32.sub (i32.sub (local.get $to) (local.get $start)) (i32.const 4)))
    (if (i32.or (i32.lt_u (i32.load (local.get $start)) (i32.const 8)) (i32.ge_u (global.get $handles) (i32.const 900)))
      (then (return (i32.const -1))))
    (i32.store (i32.add (i32.const 64) (i32.mul (global.get $handles) (i32.const 4))) (local.get $start))
    (global.set $handles (i32.add (global.get $handles) (i32.const 1)))
    (i32.sub (global.get $handles) (i32.const 1)))

  (func (export "sluice_needs") (param $handle i32) (result i32)
    (if (i32.eq (local.get $handle) (i32.const -1)) (then (return (i32.const 0))))
    (i32.load offset=4 (call $told (local.get $handle))))

  (func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
    (local $told i32)
    (if (i32.eq (local.get $handle) (i32.const -1)) (then (return (i32.const 0))))
    (local.set $told (call $told (local.get $handle)))
    (memory.copy (local.get $to) (i32.add (local.get $told) (i32.const 12)) (i32.load offset=8 (local.get $told)))
    (i32.load offset=8 (local.get $told)))

  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (local $told i32) (local $n i32) (local $total i32) (local $answer i32)
    (if (i32.ne (i32.load offset=60 (local.get $req)) (i32.const -1))
      (then
        (local.set $told (call $told (i32.load offset=60 (local.get $req))))
        (local.set $answer (i32.sub (i32.sub (i32.load (local.get $told)) (i32.const 8)) (i32.load offset=8 (local.get $told))))
        (if (i32.gt_s (local.get $answer) (i32.const 0))
          (then
            (memory.copy (local.get $resp) (i32.add (i32.add (local.get $told) (i32.const 12)) (i32.load offset=8 (local.get $told))) (local.get $answer))
            (return (i64.extend_i32_u (local.get $answer)))))))
    (local.set $n (i32.load offset=76 (local.get $req)))
    (local.set $total (i32.load offset=8 (local.get $req)))
    (if (i32.gt_u (local.get $n) (i32.const 16)) (then (local.set $n (i32.const 16))))
    (if (i32.gt_u (local.get $total) (i32.add (i32.const 1024) (i32.mul (local.get $n) (i32.const 128))))
      (then (return (call $digests (local.get $req) (local.get $resp) (local.get $size)))))
    (call $echo (local.get $req) (local.get $total) (local.get $resp) (i32.wrap_i64 (local.get $size))))

  (func $least (param i32 i32) (result i32) (select (local.get 0) (local.get 1) (i32.lt_u (local.get 0) (local.get 1))))

  (func $hex (param $d i32) (result i32)
    (i32.add (local.get $d) (select (i32.const 48) (i32.const 87) (i32.lt_u (local.get $d) (i32.const 10)))))

  (func $echo (param $req i32) (param $total i32) (param $resp i32) (param $size i32) (result i64)
    (local $state i32) (local $rest i32) (local $reasons i32) (local $table i32) (local $text i32) (local $i i32) (local $n i32) (local $from i32)
    (local.set $state (call $least (local.get $total) (i32.const 1024)))
    (i32.store offset=32 (local.get $resp) (local.get $size))
    (i32.store offset=36 (local.get $resp) (local.get $state))
    (memory.copy (i32.add (local.get $resp) (local.get $size)) (local.get $req) (local.get $state))
    (local.set $rest (i32.sub (local.get $total) (local.get $state)))
    (local.set $reasons (i32.div_u (i32.add (local.get $rest) (i32.const 127)) (i32.const 128)))
    (local.set $table (i32.and (i32.add (i32.add (local.get $size) (local.get $state)) (i32.const 7)) (i32.const -8)))
    (local.set $text (i32.add (local.get $table) (i32.mul (local.get $reasons) (i32.const 8))))
    (i32.store offset=40 (local.get $resp) (local.get $table))
    (i32.store offset=44 (local.get $resp) (local.get $reasons))
    (local.set $from (i32.add (local.get $req) (local.get $state)))
    (block $done
      (loop $reason
        (br_if $done (i32.ge_u (local.get $i) (local.get $reasons)))
        (local.set $n (call $least (local.get $rest) (i32.const 128)))
        (local.set $rest (i32.sub (local.get $rest) (local.get $n)))
        (i32.store (i32.add (i32.add (local.get $resp) (local.get $table)) (i32.mul (local.get $i) (i32.const 8))) (local.get $text))
        (i32.store offset=4 (i32.add (i32.add (local.get $resp) (local.get $table)) (i32.mul (local.get $i) (i32.const 8))) (i32.mul (local.get $n) (i32.const 2)))
        (i32.store16 offset=68 (i32.add (local.get $resp) (i32.mul (local.get $i) (i32.const 16))) (local.get $i)) ;; of result i
        (loop $byte
          (i32.store8 (i32.add (local.get $resp) (local.get $text)) (call $hex (i32.shr_u (i32.load8_u (local.get $from)) (i32.const 4))))
          (i32.store8 offset=1 (i32.add (local.get $resp) (local.get $text)) (call $hex (i32.and (i32.load8_u (local.get $from)) (i32.const 15))))
          (local.set $from (i32.add (local.get $from) (i32.const 1)))
          (local.set $text (i32.add (local.get $text) (i32.const 2)))
          (br_if $byte (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $reason)))
    (i32.store offset=4 (local.get $resp) (local.get $text))
    (i64.extend_i32_u (local.get $text)))

  (func $fnv (param $h i32) (param $at i32) (param $n i32) (result i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $h (i32.mul (i32.xor (local.get $h) (i32.load8_u (local.get $at))) (i32.const 16777619)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (local.get $h))

  (func $name (param $h i32) (param $req i32) (param $id i32) (result i32)
    (local $at i32) (local $n i32)
    (if (i32.eq (local.get $id) (i32.const -1)) (then (return (local.get $h))))
    (local.set $at (i32.add (local.get $req) (i32.load offset=96 (local.get $req))))
    (local.set $n (i32.load offset=100 (local.get $req)))
    (loop $next
      (if (i32.eqz (local.get $n)) (then (unreachable))) ;; the table does not have it
      (if (i32.eq (i32.load (local.get $at)) (local.get $id))
        (then (return (call $fnv (local.get $h) (i32.add (local.get $req) (i32.load offset=4 (local.get $at))) (i32.load offset=8 (local.get $at))))))
      (local.set $at (i32.add (local.get $at) (i32.load offset=104 (local.get $req))))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br $next))
    (unreachable))

  (func $digests (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (local $at i32) (local $n i32) (local $h i32)
    (local.set $at (i32.add (local.get $req) (i32.load offset=72 (local.get $req))))
    (local.set $n (i32.load offset=76 (local.get $req)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $h (call $fnv (i32.const 0x811c9dc5) (local.get $at) (i32.const 18)))
        (local.set $h (call $fnv (local.get $h) (i32.add (local.get $at) (i32.const 20)) (i32.const 4)))
        (local.set $h (call $fnv (local.get $h) (i32.add (local.get $at) (i32.const 32)) (i32.const 24)))
        (local.set $h (call $fnv (local.get $h) (i32.add (local.get $at) (i32.const 64)) (i32.const 8)))
        (local.set $h (call $name (local.get $h) (local.get $req) (i32.load offset=24 (local.get $at))))
        (local.set $h (call $name (local.get $h) (local.get $req) (i32.load offset=28 (local.get $at))))
        (i32.store offset=56 (local.get $resp) (i32.add (i32.const 1) (i32.and (local.get $h) (i32.const 0x7fffffff))))
        (local.set $resp (i32.add (local.get $resp) (i32.const 16)))
        (local.set $at (i32.add (local.get $at) (i32.load offset=80 (local.get $req))))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (local.get $size))
