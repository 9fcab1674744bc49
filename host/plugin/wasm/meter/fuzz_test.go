package meter_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// fuzzLimits keeps one try short; the engine is the slow part.
func fuzzLimits() meter.Limits {
	l := meter.DefaultLimits()
	l.Module, l.Body, l.Work, l.FunctionWork = 1<<20, 8<<10, 100_000, 50_000
	l.MemoryPages, l.TableSize, l.Locals, l.StackSlots = 16, 1000, 200, 1<<14
	return l
}

func fuzzConfig() wazero.RuntimeConfig {
	return wazero.NewRuntimeConfig().WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(16).
		WithDebugInfoEnabled(false) // as the host: with it, an empty custom section at the end of a module is an error
}

// checkOutline checks that a new instance of an outline has the same memory as one of the whole module, and the same globals.
func checkOutline(t *testing.T, whole api.Module, rt wazero.Runtime, outline wazero.CompiledModule, image []byte, hasMemory bool) {
	o, err := rt.InstantiateModule(context.Background(), outline, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		t.Fatalf("the outline cannot be instantiated: %v", err)
	}
	if hasMemory {
		want, _ := whole.Memory().Read(0, whole.Memory().Size())
		got, _ := o.Memory().Read(0, o.Memory().Size())
		if image != nil {
			copy(got, image)
		}
		if len(image) > len(got) || !bytes.Equal(got, want) {
			t.Fatalf("the outline has another memory: %d bytes, image %d, want %d", len(got), len(image), len(want))
		}
	}
	for _, name := range []string{meter.FuelExport, meter.StackExport} {
		if o.ExportedGlobal(name).Get() != whole.ExportedGlobal(name).Get() {
			t.Fatalf("global %s is %d", name, o.ExportedGlobal(name).Get())
		}
	}
}

// checkRewrite checks properties of every input: no panic; rewriting is deterministic; the engine accepts the
// rewritten module exactly when it takes the original; and what the rewritten one computes without running out of
// fuel, the original computes too.
func checkRewrite(t *testing.T, in []byte) (accepted bool) {
	out, info, err := meter.Rewrite(in, fuzzLimits())
	if err != nil {
		if err.Error() == "" {
			t.Fatal("an error without a text")
		}
		if strings.Contains(err.Error(), "invalid code") && !bytes.Contains(in, []byte("\x04name")) {
			rt := wazero.NewRuntimeWithConfig(context.Background(), fuzzConfig())
			defer rt.Close(context.Background())
			if _, engineErr := rt.CompileModule(context.Background(), in); engineErr == nil {
				t.Fatalf("refused, but the engine takes it: %v\n%x", err, in)
			}
		}
		return false
	}
	if again, _, err := meter.Rewrite(in, fuzzLimits()); err != nil || !bytes.Equal(out, again) {
		t.Fatalf("the second rewriting differs: %v", err)
	}
	if bytes.Contains(in, []byte("\x04name")) {
		return true // a hostile name section makes the engine allocate gigabytes: only the rewritten one is safe
	}
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, fuzzConfig())
	defer rt.Close(ctx)
	raw, errRaw := rt.CompileModule(ctx, in)
	met, errMet := rt.CompileModule(ctx, out)
	if (errRaw == nil) != (errMet == nil) {
		t.Fatalf("the original: %v\nmetered: %v\n%x", errRaw, errMet, in)
	}
	if errMet != nil {
		return false
	}
	outline, err := meter.NewOutline(out)
	if err != nil {
		t.Fatalf("no outline: %v\n%x", err, in)
	}
	bare, err := rt.CompileModule(ctx, outline.Module)
	if err != nil {
		t.Fatalf("the outline: %v\n%x", err, in)
	}
	if len(info.Imports) > 0 {
		return true
	}
	m, err := rt.InstantiateModule(ctx, met, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return true // a segment does not fit
	}
	checkOutline(t, m, rt, bare, outline.Memory, info.MemoryMin > 0)
	fuel := m.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
	var trace []string
	call := func(m api.Module, name string) (string, bool) {
		f := m.ExportedFunction(name)
		for _, p := range append(f.Definition().ParamTypes(), f.Definition().ResultTypes()...) {
			if p == api.ValueTypeExternref || p == 0x70 || p == 0x7b {
				return "", true // references are addresses, and vectors are two values
			}
		}
		args := make([]uint64, len(f.Definition().ParamTypes()))
		for i := range args {
			args[i] = uint64(3 + i)
		}
		res, err := f.Call(ctx, args...)
		return fmt.Sprint(name, res, trapText(err)), err == nil
	}
	fuel.Set(20_000)
	if info.Start {
		if _, ok := call(m, meter.StartExport); !ok {
			return true
		}
	}
	for _, e := range info.Exports {
		if e.Kind != meter.KindFunc {
			continue
		}
		got, _ := call(m, e.Name)
		if left := int64(fuel.Get()); left < 0 {
			if left < -600_000_000 {
				t.Fatalf("fuel is overdrawn to %d", left)
			}
			break
		}
		if int64(m.ExportedGlobal(meter.StackExport).Get()) != int64(fuzzLimits().StackSlots) {
			break // a trap left the stack as it was: the instance is done with
		}
		trace = append(trace, got)
	}
	r, err := rt.InstantiateModule(ctx, raw, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		t.Fatalf("the original cannot be instantiated: %v", err)
	}
	i := 0
	for _, e := range info.Exports {
		if e.Kind != meter.KindFunc || i == len(trace) {
			continue
		}
		if want, _ := call(r, e.Name); want != trace[i] {
			t.Fatalf("%s: unmetered %q, metered %q\n%x", e.Name, want, trace[i], in)
		}
		i++
	}
	return true
}

func seeds(t testing.TB) [][]byte {
	all := [][]byte{wat(t, everything), wat(t, `(module (memory 1) (global $g (mut i64) (i64.const 1))
		(func $s (global.set $g (i64.const 2))) (start $s) (func (export "a") (param i32 i64) (result i64)
		(loop (br_if 0 (i32.eqz (local.tee 0 (i32.add (local.get 0) (i32.const 1)))))) (i64.add (local.get 1) (global.get $g))))`)}
	files, _ := filepath.Glob("testdata/*.wasm")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			all = append(all, b)
		}
	}
	return all
}

func FuzzRewrite(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in []byte) { checkRewrite(t, in) })
}

// TestMutatedModulesAreRefusedOrBehaveTheSame is the fuzz test's property on modules with a few bytes changed, always the
// same ones, as part of every test run.
func TestMutatedModulesAreRefusedOrBehaveTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	tries, accepted := 3000, 0
	if testing.Short() {
		tries = 150
	}
	all := seeds(t)
	for range tries {
		in := bytes.Clone(all[r.IntN(len(all))])
		in = stripNames(in)
		for range 1 + r.IntN(3) {
			switch i := 8 + r.IntN(len(in)-8); r.IntN(4) {
			case 0:
				in[i] = byte(r.Uint32())
			case 1:
				in[i] ^= 1 << r.IntN(8)
			case 2:
				in[i] = in[8+r.IntN(len(in)-8)]
			case 3:
				in[i]++
			}
		}
		if checkRewrite(t, in) {
			accepted++
		}
	}
	if accepted < tries/50 {
		t.Errorf("only %d of %d were accepted: the test proves nothing", accepted, tries)
	}
	t.Logf("%d of %d accepted", accepted, tries)
}

// stripNames cuts the name section off, which wat2wasm writes last.
func stripNames(b []byte) []byte {
	if i := bytes.LastIndex(b, []byte("\x04name")); i > 0 {
		for j := i - 1; j >= i-3 && j > 8; j-- {
			if b[j] == 0 {
				return b[:j]
			}
		}
	}
	return b
}
