;; load: sluice_keys declares "label:track" \(labels of Pods\): it has no Pods
;; missing: podLabels
(data (i32.const 16) "label:track")
(func (export "sluice_keys") (param $handle i32) (param $to i32) (param $room i32) (result i32)
  (memory.copy (local.get $to) (i32.const 16) (i32.const 11)) (i32.const 11))
(func $evil (param i32 i32 i64) (result i64) (i64.const 0))
