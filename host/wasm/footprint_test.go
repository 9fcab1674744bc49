package wasm

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
)

// Each of these uses an instruction that allocates, or might, in the host.
func TestInstancesDoNotGrowInTheHost(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	table := "(type $v (func)) (table $t 10 90000 funcref) (elem $e func $leaf $leaf $leaf) (elem (i32.const 0) $leaf) (func $leaf) "
	for name, c := range map[string]struct{ decls, body string }{
		"memory.grow":       {"", "(drop (memory.grow (i32.const 1)))"},
		"memory.grow by 0":  {"", "(drop (memory.grow (i32.const 0)))"},
		"memory.size":       {"", "(drop (memory.size))"},
		"memory.fill":       {"", "(memory.fill (i32.const 400000) (i32.const 1) (i32.const 1000))"},
		"memory.init, drop": {`(data $d "0123456789")`, "(memory.init $d (i32.const 400000) (i32.const 0) (i32.const 0)) (data.drop $d)"},
		"table.grow":        {table, "(drop (table.grow $t (table.get $t (i32.const 0)) (i32.const 100)))"},
		"table.grow by 0":   {table, "(drop (table.grow $t (ref.null func) (i32.const 0)))"},
		"table.set":         {table, "(table.set $t (i32.const 1) (table.get $t (i32.const 0)))"},
		"table.fill":        {table, "(table.fill $t (i32.const 1) (table.get $t (i32.const 0)) (i32.const 5))"},
		"table.init":        {table, "(table.init $t $e (i32.const 1) (i32.const 0) (i32.const 3))"},
		"table.copy":        {table, "(table.copy $t $t (i32.const 1) (i32.const 0) (i32.const 3))"},
		"elem.drop":         {table, "(elem.drop $e)"},
		"call_indirect":     {table, "(call_indirect $t (type $v) (i32.const 0))"},
		"ref.null":          {table, "(drop (ref.is_null (ref.null func)))"},
		"global of funcref": {table + "(global $g (mut funcref) (ref.func $leaf))", "(global.set $g (table.get $t (i32.const 0)))"},
		"deep recursion":    {"(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))))))", "(call $f (i32.const 20000))"},
	} {
		t.Run(name, func(t *testing.T) {
			n := "100"
			if name == "deep recursion" {
				n = "1"
			}
			body := `(local $i i32) (local.set $i (i32.const ` + n + `)) (loop $l ` + c.body + `
				(br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1))))) (local.get 2)`
			p := load(t, h, slow{name, c.decls, body}.module(t), "")
			defer p.Close()
			calls := func(n int) (heap, host uint64) {
				for range n {
					if err := decide(p, 666, sampleNow); err != nil {
						t.Fatal(err)
					}
				}
				runtime.GC()
				runtime.GC() // the second one frees what has a finalizer
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc, p.Stats().MemoryBytes
			}
			heap, host := calls(25 * trimEvery)
			heapLater, hostLater := calls(50 * trimEvery)
			if heapLater > heap+256<<10 {
				t.Errorf("the heap grew from %d to %d bytes", heap, heapLater)
			}
			if hostLater > host && name != "memory.grow" || hostLater > uint64(h.limits.MemoryPages)<<16+uint64(h.limits.OverheadBytes) {
				t.Errorf("the instance grew from %d to %d bytes", host, hostLater)
			}
			if p.Stats().Instances > 2 {
				t.Errorf("%d instances", p.Stats().Instances)
			}
		})
	}
}

// The footprint is read from wazero's own records; this fails if they have changed.
func TestFootprintSeesAllMemoryOfAnInstance(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	measured := func(decls, body string) footprint {
		t.Helper()
		p := load(t, h, slow{"", decls, body + "(local.get 2)"}.module(t), "")
		defer p.Close()
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatal(err)
		}
		f, err := measure(sandboxOf(p).module, sandboxOf(p).decide, sandboxOf(p).alloc)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	plain := measured("", "")
	if plain.memory == 0 || plain.stacks == 0 {
		t.Errorf("%+v", plain)
	}
	if f := measured("", "(drop (memory.grow (i32.const 100)))"); f.memory != plain.memory+100<<16 {
		t.Errorf("after memory.grow: %+v, before %+v", f, plain)
	}
	if f := measured("(table $t 1000 funcref)", "(drop (table.grow $t (ref.null func) (i32.const 9000)))"); f.tables < plain.tables+80_000 {
		t.Errorf("with a table: %+v, without %+v", f, plain)
	}
	if f := measured("(func $f) (elem $e func "+strings.Repeat("$f ", 1000)+")", ""); f.references < plain.references+40_000 {
		t.Errorf("with references: %+v, without %+v", f, plain)
	}
	deep := "(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))))))"
	if f := measured(deep, "(call $f (i32.const 20000))"); f.stacks < plain.stacks+500_000 {
		t.Errorf("after a recursion: %+v, before %+v", f, plain)
	}
}

func TestCallStacksOfRecursionsAreFreed(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	recursion := "(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))))))"
	const deep = "(call $f (i32.const 20000)) "
	inDecide := recursion + "(func $evil (param i32 i32 i64) (result i64) " + deep + "(local.get 2))"
	inAlloc := recursion + "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"
	base := mustRead(t, "../../sdk/tck/hosts/guests/base.wat")
	for name, text := range map[string]string{
		"sluice_decide": strings.Replace(base, ";; EVIL", inDecide, 1),
		"sluice_alloc":  strings.Replace(strings.Replace(base, ";; EVIL", inAlloc, 1), "(local $at i32)", "(local $at i32) "+deep, 1),
	} {
		p := load(t, h, wat(t, text), "")
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatal(err)
		}
		used := p.Stats().MemoryBytes
		for range trimEvery {
			checkGood(t, p, sampleNow)
		}
		if now := p.Stats().MemoryBytes; now > used-500_000 || p.Stats().Instances != 1 {
			t.Errorf("%s: %d bytes after a recursion, %d after %d other calls", name, used, now, trimEvery)
		}
	}
}

func TestInstanceWithTooMuchHostMemoryIsReplaced(t *testing.T) {
	var log bytes.Buffer
	h := newHost(t, Options{CacheDir: noCache, Limits: Limits{OverheadBytes: 400_000}, Log: textLog(&log)})
	p := load(t, h, slow{"", "(table $t 1 funcref)", "(drop (table.grow $t (ref.null func) (i32.const 90000))) (local.get 2)"}.module(t), "")
	for range trimEvery {
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatal(err)
		}
	}
	checkGood(t, p, sampleNow)
	if s := p.Stats(); s.Failures != 0 || s.Instances != 2 || s.MemoryBytes > 700_000 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(log.String(), "plugin instance replaced") {
		t.Errorf("not logged: %s", &log)
	}
}

// sandboxOf returns the current instance of a plugin.
func sandboxOf(p *Plugin) *sandbox { return p.guest.in.(*sandbox) }
