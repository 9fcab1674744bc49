package meter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
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

// checkEngines compares a generated module, metered and compiled, with the original in the interpreter. It returns the number of traps.
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

// TestCompiledCodeComputesWhatTheInterpreterDoes runs always the same generated modules: selects of floats and vectors, and remainders, with
// more values than registers and calls between them.
func TestCompiledCodeComputesWhatTheInterpreterDoes(t *testing.T) {
	n, traps := 400, 0
	if testing.Short() {
		n = 60
	}
	for seed := range uint64(n) {
		traps += checkEngines(t, seed)
	}
	if calls := 8 * n; traps == 0 || traps > calls/2 {
		t.Errorf("%d of %d calls trap: the test shows little", traps, calls)
	}
}

func FuzzEngines(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { checkEngines(t, seed) })
}
