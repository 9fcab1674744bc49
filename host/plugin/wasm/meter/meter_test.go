package meter_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

func TestMeteredModuleBehavesTheSame(t *testing.T) {
	raw := wat(t, everything)
	out, info := rewrite(t, raw)
	if info.Functions != 16 || info.Start {
		t.Errorf("info: %+v", info)
	}
	for _, name := range []string{"fib", "pair", "multi", "switch", "indirect", "vector", "float", "unreached", "select", "divide", "global", "bulk"} {
		for arg := range uint64(18) {
			a, b := instantiate(t, raw, false), instantiate(t, out, true)
			want, _, errA := a.call(0, name, arg)
			got, used, errB := b.call(1<<40, name, arg)
			if trapText(errA) != trapText(errB) || fmt.Sprint(want) != fmt.Sprint(got) {
				t.Errorf("%s(%d): %v %q, metered %v %q", name, arg, want, trapText(errA), got, trapText(errB))
			}
			if used <= 0 {
				t.Errorf("%s(%d) used %d", name, arg, used)
			}
			if errB == nil && b.stack.Get() != uint64(meter.DefaultLimits().StackSlots) {
				t.Errorf("%s(%d) left the stack at %d", name, arg, b.stack.Get())
			}
			am, _ := a.mod.Memory().Read(0, 2<<16)
			bm, _ := b.mod.Memory().Read(0, 2<<16)
			if !bytes.Equal(am, bm) || a.mod.Memory().Size() != b.mod.Memory().Size() {
				t.Errorf("%s(%d): memories differ", name, arg)
			}
		}
	}
}

func TestFuelIsDeterministicAndGrowsWithWork(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	again, _ := rewrite(t, wat(t, everything))
	if !bytes.Equal(out, again) {
		t.Fatal("two rewritings differ")
	}
	r := instantiate(t, out, true)
	last := int64(0)
	for n := uint64(2); n < 20; n++ {
		_, a, err := r.call(1<<40, "fib", n)
		_, b, _ := r.call(1<<40, "fib", n)
		if err != nil || a != b || a <= last {
			t.Fatalf("fib(%d): %d, %d, before %d: %v", n, a, b, last, err)
		}
		last = a
	}
}

func TestTrapsExactlyWhenFuelRunsOut(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	r := instantiate(t, out, true)
	_, used, err := r.call(1<<40, "fib", 15)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.call(used, "fib", 15); err != nil {
		t.Errorf("with all it needs: %v", err)
	}
	r = instantiate(t, out, true)
	// The very last block is charged without a check: the host sees it in the global.
	_, _, err = r.call(used-100, "fib", 15)
	if err == nil || int64(r.fuel.Get()) >= 0 {
		t.Errorf("with 100 too little: %v, fuel %d", err, int64(r.fuel.Get()))
	}
}

func TestModuleStartsWithoutFuel(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	r := instantiate(t, out, true)
	if _, err := r.mod.ExportedFunction("fib").Call(context.Background(), 5); err == nil {
		t.Error("it ran")
	}
}

func TestStartFunctionIsExportedForTheHost(t *testing.T) {
	out, info := rewrite(t, wat(t, `(module (global $g (mut i32) (i32.const 1))
		(func $s (global.set $g (i32.const 2))) (start $s) (func (export "get") (result i32) (global.get $g)))`))
	if !info.Start {
		t.Error("Info.Start is false")
	}
	r := instantiate(t, out, true)
	if v, _, _ := r.call(100, "get"); v[0] != 1 {
		t.Error("the engine started it")
	}
	if _, used, err := r.call(100, meter.StartExport); err != nil || used < 2 {
		t.Errorf("start: used %d, %v", used, err)
	}
	if v, _, _ := r.call(100, "get"); v[0] != 2 {
		t.Error("starting it did nothing")
	}
}

func TestBulkOperationsAreChargedBySize(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module (memory (export "memory") 32) (table $t 1000 externref)
		(data $d "0123456789012345678901234567890123456789012345678901234567890123456789") (table $f 9 funcref) (elem $e funcref (ref.null func) (ref.null func))
		(func (export "fill") (param i32) (memory.fill (i32.const 0) (i32.const 1) (local.get 0)))
		(func (export "copy") (param i32) (memory.copy (i32.const 0) (i32.const 1) (local.get 0)))
		(func (export "init") (param i32) (memory.init $d (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "grow") (param i32) (drop (memory.grow (local.get 0))))
		(func (export "tfill") (param i32) (table.fill $t (i32.const 0) (ref.null extern) (local.get 0)))
		(func (export "tcopy") (param i32) (table.copy $t $t (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "tinit") (param i32) (table.init $f $e (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "tgrow") (param i32) (drop (table.grow $t (ref.null extern) (local.get 0)))))`))
	for _, c := range []struct {
		name string
		n    uint64
		more int64 // than for 0
	}{
		{"fill", 1 << 20, 1 << 17}, {"copy", 1 << 20, 1 << 17}, {"init", 64, 8}, {"grow", 3, 3 * 4096},
		{"tfill", 900, 900}, {"tcopy", 900, 900}, {"tinit", 2, 2}, {"tgrow", 50, 800},
	} {
		_, zero, err0 := instantiate(t, out, true).call(1<<40, c.name, 0)
		_, some, err := instantiate(t, out, true).call(1<<40, c.name, c.n)
		if err0 != nil || err != nil || some-zero != c.more {
			t.Errorf("%s(%d) costs %d more than none (%d), want %d: %v %v", c.name, c.n, some-zero, zero, c.more, err0, err)
		}
	}
}

func TestStackIsBoundedByFrameSize(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module
		(func $small (export "small") (param i32) (result i32)
		  (if (result i32) (local.get 0) (then (i32.add (i32.const 1) (call $small (i32.sub (local.get 0) (i32.const 1))))) (else (i32.const 0))))
		(func $large (export "large") (param i32) (result i32) (local `+strings.Repeat("i64 ", 1000)+`)
		  (if (result i32) (local.get 0) (then (i32.add (i32.const 1) (call $large (i32.sub (local.get 0) (i32.const 1))))) (else (i32.const 0)))))`))
	r := instantiate(t, out, true)
	for _, c := range []struct {
		name  string
		depth uint64
		ok    bool
	}{{"small", 20_000, true}, {"small", 100_000, false}, {"large", 900, true}, {"large", 30_000, false}} {
		v, _, err := r.call(1<<40, c.name, c.depth)
		if c.ok && (err != nil || v[0] != c.depth) {
			t.Errorf("%s(%d): %v %v", c.name, c.depth, v, err)
		}
		if !c.ok {
			if err == nil || int64(r.stack.Get()) >= 0 {
				t.Errorf("%s(%d) went through", c.name, c.depth)
			}
			r = instantiate(t, out, true)
		}
	}
}

// TestOverdraftIsBounded: between two checks a module can do no more than doc.go says.
func TestOverdraftIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`(module (func $leaf (param i64) (result i64) ` + `(i64.add (local.get 0) (i64.const 1))` + strings.Repeat(`(i64.const 1) i64.add `, 20) + `)
		(func $mid (param i64) (result i64) (local.get 0) ` + strings.Repeat(`(call $leaf)`, 20_000) + `)
		(func (export "go") (result i64) (call $mid (i64.const 1)) ` + strings.Repeat(`(call $mid)`, 5000) + `))`)
	out, _ := rewrite(t, wat(t, b.String()))
	r := instantiate(t, out, true)
	_, _, err := r.call(1000, "go")
	if left := int64(r.fuel.Get()); err == nil || left > 0 || left < -100_000 {
		t.Errorf("fuel ends at %d: %v", left, err)
	}
}

// TestInstanceHasAPrice: what the engine does for each new instance is paid from the budget to start.
func TestInstanceHasAPrice(t *testing.T) {
	price := func(text string) int64 {
		_, info := rewrite(t, wat(t, text))
		return info.InstantiateFuel()
	}
	empty := price(`(module)`)
	elements := `(func $f) (table 1000 funcref) (elem (i32.const 0) func ` + strings.Repeat("$f ", 1000) + `)`
	for _, c := range []struct {
		name, text string
		atLeast    int64
	}{
		{"memory", `(module (memory 1000))`, 1000 * 1000},
		{"elements", `(module ` + elements + `)`, 1000 * 100},
		{"data", `(module (memory 1) (data (i32.const 0) "` + strings.Repeat("x", 8000) + `"))`, 1000},
		{"data segments", `(module (memory 1) ` + strings.Repeat(`(data (i32.const 0) "x")`, 1000) + `)`, 1000 * 100},
		{"globals", `(module ` + strings.Repeat(`(global i32 (i32.const 0))`, 1000) + `)`, 1000 * 100},
	} {
		if got := price(c.text) - empty; got < c.atLeast {
			t.Errorf("%s: %d, want at least %d", c.name, got, c.atLeast)
		}
	}
}

// TestSizesOfSectionsAreBounded: each element, type and data segment takes more memory in the engine than in the module.
func TestSizesOfSectionsAreBounded(t *testing.T) {
	many := `(elem func ` + strings.Repeat("$f ", 60_000) + `)`
	for text, want := range map[string]string{
		`(module (func $f) ` + many + many + `)`:                              "120000 elements in the segments up to 1, the limit is 100000",
		`(module (table 100001 funcref))`:                                     "a minimum of 100001 elements, the limit is 100000",
		`(module (memory 1025))`:                                              "a minimum of 1025 pages of 64 KiB, the limit is 1024",
		`(module ` + strings.Repeat(`(global i32 (i32.const 0))`, 1025) + `)`: "1025 globals, the limit is 1024",
		`(module ` + strings.Repeat(`(table 1 funcref)`, 9) + `)`:             "9 tables, the limit is 8",
	} {
		_, _, err := meter.Rewrite(wat(t, text), meter.DefaultLimits())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", text, err, want)
		}
	}
}
