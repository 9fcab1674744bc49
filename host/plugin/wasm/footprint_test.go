package wasm

import (
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
			n, rounds := "100", 25
			if name == "deep recursion" { // what it leaves would be megabytes
				n, rounds = "1", 3
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
			heap, host := calls(rounds * trimEvery)
			heapLater, hostLater := calls(2 * rounds * trimEvery)
			if heapLater > heap+256<<10 {
				t.Errorf("the heap grew from %d to %d bytes", heap, heapLater)
			}
			if hostLater > host && name != "memory.grow" || hostLater > uint64(h.limits.MemoryPages)<<16+1<<20 {
				t.Errorf("the instance grew from %d to %d bytes", host, hostLater)
			}
			if p.Stats().Instances > 2 {
				t.Errorf("%d instances", p.Stats().Instances)
			}
		})
	}
}

func TestTablesOfAnInstanceCount(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	bytesOf := func(decls, body string) uint64 {
		t.Helper()
		p := load(t, h, slow{"", decls, body + "(local.get 2)"}.module(t), "")
		defer p.Close()
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatal(err)
		}
		return p.Stats().MemoryBytes
	}
	plain := bytesOf("", "")
	if n := bytesOf("", "(drop (memory.grow (i32.const 100)))"); n != plain+100<<16 {
		t.Errorf("after memory.grow: %d, before %d", n, plain)
	}
	if n := bytesOf("(table $t 1000 10000 funcref)", ""); n < plain+80_000 {
		t.Errorf("with a table: %d, without %d", n, plain)
	}
	if n := bytesOf("(func $f) (elem $e func "+strings.Repeat("$f ", 1000)+")", ""); n < plain+40_000 {
		t.Errorf("with references: %d, without %d", n, plain)
	}
}

// TestCallStacksOfRecursionsAreFreed: what a deep recursion leaves, the next calls free.
func TestCallStacksOfRecursionsAreFreed(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	recursion := "(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))))))"
	const deep = "(call $f (i32.const 20000)) "
	inDecide := recursion + "(func $evil (param i32 i32 i64) (result i64) " + deep + "(local.get 2))"
	inAlloc := recursion + "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"
	base := mustRead(t, "../../../sdk/tck/hosts/guests/base.wat")
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // the second one frees what has a finalizer
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, text := range map[string]string{
		"sluice_decide": strings.Replace(base, ";; EVIL", inDecide, 1),
		"sluice_alloc":  strings.Replace(strings.Replace(base, ";; EVIL", inAlloc, 1), "(local $at i32)", "(local $at i32) "+deep, 1),
	} {
		p := load(t, h, wat(t, text), "")
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatal(err)
		}
		used := heap()
		for range trimEvery {
			checkGood(t, p, sampleNow)
		}
		if now := heap(); now > used-500_000 || p.Stats().Instances != 1 {
			t.Errorf("%s: %d bytes after a recursion, %d after %d other calls", name, used, now, trimEvery)
		}
	}
}
