package meter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// outcomes runs function f of a module for each argument from 0 to 7 and returns results, traps and the fuel used.
func outcomes(t testing.TB, config wazero.RuntimeConfig, module []byte, metered bool) (results []string, fuel []int64) {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, config.WithCoreFeatures(api.CoreFeaturesV2).WithDebugInfoEnabled(false))
	defer rt.Close(ctx)
	mod, err := rt.InstantiateWithConfig(ctx, module, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatalf("%v\n%x", err, module)
	}
	r := &run{t: t, mod: mod}
	if metered {
		r.fuel = mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
		r.stack = mod.ExportedGlobal(meter.StackExport).(api.MutableGlobal)
	}
	for arg := range uint64(8) {
		if metered {
			r.stack.Set(1 << 20) // a trap leaves it as it was
		}
		res, used, err := r.call(1<<40, "f", arg)
		results, fuel = append(results, fmt.Sprintf("%x %s", res, trapText(err))), append(fuel, used)
	}
	return results, fuel
}

// checkEngines compares a generated module, metered and compiled, with the original in the interpreter. It returns the number of
// traps.
func checkEngines(t testing.TB, seed uint64) (traps int) {
	module := program(rand.New(rand.NewPCG(seed, 2534)))
	metered, _ := rewrite(t, module)
	want, _ := outcomes(t, wazero.NewRuntimeConfigInterpreter(), module, false)
	same, wantFuel := outcomes(t, wazero.NewRuntimeConfigInterpreter(), metered, true)
	got, fuel := outcomes(t, wazero.NewRuntimeConfigCompiler(), metered, true)
	for arg := range want {
		if same[arg] != want[arg] || got[arg] != want[arg] || fuel[arg] != wantFuel[arg] {
			t.Fatalf("seed %d, f(%d): interpreter %s, metered %s with %d fuel, compiled %s with %d fuel\n%x", seed, arg,
				want[arg], same[arg], wantFuel[arg], got[arg], fuel[arg], module)
		}
		if want[arg][len(want[arg])-1] != ' ' {
			traps++
		}
	}
	return traps
}

// TestCompiledCodeComputesWhatTheInterpreterDoes runs always the same generated modules: selects of floats and vectors, and
// remainders, with more values than registers and calls between them.
func TestCompiledCodeComputesWhatTheInterpreterDoes(t *testing.T) {
	first, n, traps := 0, 400, 0 // four of them trap
	if testing.Short() {
		first, n = 100, 100 // two
	}
	for seed := range n {
		traps += checkEngines(t, uint64(first+seed))
	}
	if calls := 8 * n; traps == 0 || traps > calls/2 {
		t.Errorf("%d of %d calls trap: the test shows little", traps, calls)
	}
}

func FuzzEngines(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { checkEngines(t, seed) })
}

// Each instruction that is replaced has the result of the original, also for zeros, infinities, NaN with their signs and
// payloads, the smallest integer and divisions by zero, in code that is reached and in code that is not.
func TestReplacedInstructionsKeepTheirResults(t *testing.T) {
	module := wat(t, `(module
		(func (export "i32.rem_s") (param i32 i32 i32) (result i32) (i32.rem_s (local.get 0) (local.get 1)))
		(func (export "i32.rem_u") (param i32 i32 i32) (result i32) (i32.rem_u (local.get 0) (local.get 1)))
		(func (export "i64.rem_s") (param i64 i64 i32) (result i64) (i64.rem_s (local.get 0) (local.get 1)))
		(func (export "i64.rem_u") (param i64 i64 i32) (result i64) (i64.rem_u (local.get 0) (local.get 1)))
		(func (export "f32.copysign") (param f32 f32 i32) (result f32) (f32.copysign (local.get 0) (local.get 1)))
		(func (export "f64.copysign") (param f64 f64 i32) (result f64) (f64.copysign (local.get 0) (local.get 1)))
		(func (export "f32.select") (param f32 f32 i32) (result f32) (select (local.get 0) (local.get 1) (local.get 2)))
		(func (export "f64.select") (param f64 f64 i32) (result f64) (select (result f64) (local.get 0) (local.get 1) (local.get 2)))
		(func (export "v128.select") (param i64 i64 i32) (result i64) (local v128)
			(local.set 3 (select (i64x2.splat (local.get 0)) (i64x2.splat (local.get 1)) (local.get 2)))
			(i64.add (i64x2.extract_lane 0 (local.get 3)) (i64.mul (i64.const 3) (i64x2.extract_lane 1 (local.get 3)))))
		(func (export "f64.select after a bulk operation") (param f64 f64 i32) (result f64)
			(memory.fill (i32.const 0) (i32.const 1) (i32.const 9))
			(f64.add (select (local.get 0) (local.get 1) (local.get 2)) (f64.load (i32.const 0))))
		(func (export "unreached") (param f64 f64 i32) (result f64)
			(block $b (result f64)
				(br $b (local.get 0))
				(select) (drop)
				(select (f64.const 1) (unreachable) (i32.const 1)) (f64.copysign) (drop)
				(block (result v128) (unreachable) (select (v128.const i64x2 1 2) (i32.const 1))) (drop)
				(i32.rem_s) (select (result f32)) (unreachable)))
		(memory 1))`)
	metered, info := rewrite(t, module)
	want, got := instantiate(t, module, false), instantiate(t, metered, true)
	values := map[byte][]uint64{
		tI32: {0, 1, 7, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff9}, tI64: {0, 1, 7, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<64 - 7},
		tF32: {0, 0x80000000, 0x3f800000, 0xc0490fdb, 0x7f800000, 0xff800000, 0x7fc00001, 0xffa12345},
		tF64: {0, 1 << 63, 0x3ff0000000000000, 0xc00921fb54442d18, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000001, 0xfff4123456789abc},
	}
	for _, e := range info.Exports {
		if e.Kind != meter.KindFunc {
			continue
		}
		for _, a := range values[e.Type.Params[0]] {
			for _, b := range values[e.Type.Params[1]] {
				for _, c := range []uint64{0, 1, 0x100, 0x80000000} {
					w, _, wantErr := want.call(0, e.Name, a, b, c)
					g, _, gotErr := got.call(1<<40, e.Name, a, b, c)
					if fmt.Sprint(w, trapText(wantErr)) != fmt.Sprint(g, trapText(gotErr)) {
						t.Errorf("%s(%#x, %#x, %#x) is %#x, %v, want %#x, %v", e.Name, a, b, c, g, gotErr, w, wantErr)
					}
				}
			}
		}
	}
}
