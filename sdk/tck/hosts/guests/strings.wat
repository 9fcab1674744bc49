  ;; Remembers the texts of ids, by their digests, and traps if an id gets another text, or a text another id. The table is at 4 MiB: id, digest.
  (global $known (mut i32) (i32.const 0))
  (data (i32.const 16) "an id of a string has another text than in an earlier request")
  (data (i32.const 96) "a text has another id than in an earlier request")
  (func $fnv (param $at i32) (param $n i32) (result i32)
    (local $h i32)
    (local.set $h (i32.const 0x811c9dc5))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (local.set $h (i32.mul (i32.xor (local.get $h) (i32.load8_u (local.get $at))) (i32.const 16777619)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (local.get $h))

  (func $remember (param $id i32) (param $h i32)
    (local $at i32) (local $end i32)
    (local.set $at (i32.const 0x400000))
    (local.set $end (i32.add (local.get $at) (i32.mul (global.get $known) (i32.const 8))))
    (block $new
      (loop $next
        (br_if $new (i32.ge_u (local.get $at) (local.get $end)))
        (if (i32.eq (i32.load (local.get $at)) (local.get $id))
          (then
            (if (i32.ne (i32.load offset=4 (local.get $at)) (local.get $h))
              (then (call $log (i32.const 3) (i32.const 16) (i32.const 61)) (unreachable)))
            (return)))
        (if (i32.eq (i32.load offset=4 (local.get $at)) (local.get $h))
          (then (call $log (i32.const 3) (i32.const 96) (i32.const 48)) (unreachable)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br $next)))
    (i32.store (local.get $end) (local.get $id))
    (i32.store offset=4 (local.get $end) (local.get $h))
    (global.set $known (i32.add (global.get $known) (i32.const 1))))

  (func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
    (local $at i32) (local $n i32)
    (if (i32.lt_u (memory.size) (i32.const 65)) (then (drop (memory.grow (i32.sub (i32.const 65) (memory.size))))))
    (local.set $at (i32.add (local.get $req) (i32.load offset=96 (local.get $req))))
    (local.set $n (i32.load offset=100 (local.get $req)))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $n)))
        (call $remember (i32.load (local.get $at)) (call $fnv (i32.add (local.get $req) (i32.load offset=4 (local.get $at))) (i32.load offset=8 (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.load offset=104 (local.get $req))))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (local.get $size))
