package meter_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

func wat(t testing.TB, text string) []byte {
	t.Helper()
	return testenv.WAT(t, text, "--debug-names")
}

func rewrite(t testing.TB, wasm []byte) ([]byte, *meter.Info) {
	t.Helper()
	out, info, err := meter.Rewrite(wasm, meter.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return out, info
}

// run is an instance with its fuel.
type run struct {
	t     testing.TB
	mod   api.Module
	fuel  api.MutableGlobal
	stack api.MutableGlobal
}

func instantiate(t testing.TB, wasm []byte, metered bool) *run {
	t.Helper()
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(64))
	t.Cleanup(func() { rt.Close(ctx) })
	mod, err := rt.InstantiateWithConfig(ctx, wasm, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, mod: mod}
	if metered {
		r.fuel = mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
		r.stack = mod.ExportedGlobal(meter.StackExport).(api.MutableGlobal)
	}
	return r
}

// call returns the results of function name and the fuel that it used.
func (r *run) call(budget int64, name string, args ...uint64) ([]uint64, int64, error) {
	if r.fuel == nil {
		res, err := r.mod.ExportedFunction(name).Call(context.Background(), args...)
		return res, 0, err
	}
	r.fuel.Set(uint64(budget))
	res, err := r.mod.ExportedFunction(name).Call(context.Background(), args...)
	return res, budget - int64(r.fuel.Get()), err
}

func trapText(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// everything uses each kind of control flow, several results, references, bulk operations and vectors.
const everything = `(module
  (type $binary (func (param i32 i32) (result i32)))
  (type $pair (func (param i32) (result i32 i64)))
  (memory (export "memory") 2)
  (data (i32.const 100) "hello, world")
  (data $passive "passive data")
  (table $t 8 16 funcref)
  (table $x 4 externref)
  (elem (i32.const 0) $add $sub)
  (elem $e func $mul $add)
  (global $g (mut i32) (i32.const 5))
  (global $c i64 (i64.const 7))
  (func $add (type $binary) (i32.add (local.get 0) (local.get 1)))
  (func $sub (type $binary) (i32.sub (local.get 0) (local.get 1)))
  (func $mul (type $binary) (i32.mul (local.get 0) (local.get 1)))
  (func $fib (export "fib") (param i32) (result i32)
    (if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
      (then (local.get 0))
      (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1))) (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
  (func $pair (export "pair") (type $pair)
    (if (i32.eqz (local.get 0)) (then (return (i32.const -1) (i64.const -2))))
    (call $fib (local.get 0)) (i64.extend_i32_s (local.get 0)))
  (func (export "multi") (param i32) (result i64)
    (call $pair (local.get 0))
    (block (param i32 i64) (result i64)
      (loop (param i32 i64) (result i32 i64)
        (br_if 1 (i64.const 9) (i32.eqz (local.tee 0 (i32.shr_u (local.get 0) (i32.const 1)))))
        (drop) (br 0))
      (i64.add (i64.extend_i32_s (local.get 0))) (return)))
  (func (export "switch") (param i32) (result i32)
    (local $sum i32)
    (block $out
      (loop $again
        (block $d (block $c (block $b (block $a
          (br_table $a $b $c $d (local.get 0)))
          (local.set $sum (i32.add (local.get $sum) (i32.const 1))) (br $out))
          (local.set $sum (i32.add (local.get $sum) (i32.const 10))) (local.set 0 (i32.const 0)) (br $again))
          (local.set $sum (i32.add (local.get $sum) (i32.const 100))) (local.set 0 (i32.const 1)) (br $again))
        (local.set $sum (i32.add (local.get $sum) (i32.const 1000)))
        (local.set 0 (i32.and (i32.sub (local.get 0) (i32.const 1)) (i32.const 15))) (br $again)))
    (local.get $sum))
  (func (export "indirect") (param i32) (result i32)
    (table.init $t $e (i32.const 4) (i32.const 0) (i32.const 2))
    (table.copy $t $t (i32.const 6) (i32.const 4) (i32.const 2))
    (drop (table.grow $t (table.get $t (i32.const 0)) (i32.const 3)))
    (drop (table.grow $t (table.get $t (i32.const 0)) (i32.const 1000)))
    (table.fill $t (i32.const 2) (table.get $t (i32.const 4)) (i32.const 2))
    (table.set $x (i32.const 1) (ref.null extern))
    (i32.add (i32.mul (table.size $t) (i32.const 100))
      (call_indirect (type $binary) (i32.const 20) (i32.const 3) (i32.rem_u (local.get 0) (i32.const 11)))))
  (func (export "bulk") (param i32) (result i64)
    (memory.fill (i32.const 1000) (local.get 0) (i32.const 333))
    (memory.copy (i32.const 1100) (i32.const 100) (i32.const 12))
    (memory.init $passive (i32.const 1200) (i32.const 0) (i32.const 7))
    (data.drop $passive)
    (drop (memory.grow (i32.const 1)))
    (drop (memory.grow (i32.const 100)))
    (i64.add (i64.mul (i64.extend_i32_u (memory.size)) (i64.const 1000))
      (i64.xor (i64.load (i32.const 1100)) (i64.load (i32.const 1201)))))
  (func (export "vector") (param i32) (result i64)
    (local $v v128)
    (local.set $v (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23
      (i32x4.splat (local.get 0)) (v128.const i32x4 1 2 3 4)))
    (v128.store offset=64 (i32.const 0) (i16x8.abs (i64x2.mul (local.get $v) (local.get $v))))
    (local.set $v (v128.load32_lane offset=64 2 (i32.const 4) (local.get $v)))
    (i64.add (i64x2.extract_lane 0 (local.get $v)) (i64.trunc_sat_f64_s (f64x2.extract_lane 1 (f64x2.convert_low_i32x4_u (local.get $v))))))
  (func (export "float") (param i32) (result i64)
    (i64.reinterpret_f64 (f64.sqrt (f64.div (f64.convert_i32_u (local.get 0)) (f64.const 3)))))
  (func (export "unreached") (param i32) (result i32)
    (block $b (result i32)
      (br $b (i32.const 3))
      (loop (br 0)) (if (then (unreachable)) (else (return (i32.const 1)))) (block (unreachable) (br_if 0)) (unreachable)))
  (func (export "select") (param i32) (result i32)
    (global.set $g (i32.add (global.get $g) (i32.extend8_s (local.get 0))))
    (drop (ref.is_null (select (result funcref) (ref.null func) (table.get $t (i32.const 0)) (local.get 0))))
    (select (global.get $g) (i32.wrap_i64 (global.get $c)) (i32.and (local.get 0) (i32.const 1))))
  (func (export "divide") (param i32) (result i32) (i32.div_u (i32.const 100) (local.get 0)))
  (func $started (global.set $g (i32.const 77)))
  (func (export "global") (param i32) (result i32) (global.get $g))
)`
