package wasm

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// slow is a plugin that uses CPU time in one way, for ever or until fuel ends.
type slow struct {
	name  string
	decls string // of the module
	body  string // of (param i32 i32 i64) (result i64)
}

func slows() []slow {
	// A cycle of 2^19 addresses over 59 MB, from 2 MiB on, in an order that no cache predicts. The start function writes it.
	const address = "(i32.add (i32.const 2097152) (i32.mul (i32.const 112) %s))"
	next := "(i32.and (i32.add (i32.mul (local.get $i) (i32.const 1664525)) (i32.const 1013904223)) (i32.const 524287))"
	chain := "(func $fill (local $i i32) (drop (memory.grow (i32.const 980))) (loop $l (i32.store " + fmt.Sprintf(address, "(local.get $i)") + " " +
		fmt.Sprintf(address, next) + ") (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 524288))))) (start $fill) "
	const first = "(local.set 0 (i32.const 2097152))"
	forever := func(s string) string { return "(loop $l " + s + " (br $l)) (unreachable)" }
	return []slow{
		{"loop", "", forever("")},
		{"loop of divisions", "", forever("(local.set 2 (i64.div_u (local.get 2) (i64.or (local.get 2) (i64.const 1))))")},
		{"loop of square roots", "(global $x (mut f64) (f64.const 2))", forever("(global.set $x (f64.sqrt (global.get $x)))")},
		{"loop of remainders", "", forever("(local.set 2 (i64.rem_s (i64.const -9223372036854775807) (i64.or (local.get 2) (i64.const 1))))")},
		{"selects of floats", "", "(local f64 f64)" + forever(selects(100))},
		{"selects of vectors", "", "(local v128 v128)" + forever(selects(100))},
		{"nested loops", "", forever("(loop $m (br_if $m (i32.eqz (i32.const 1))))")},
		{"calls without loops", "(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))) (call $f (i32.sub (local.get 0) (i32.const 1))))))",
			"(call $f (i32.const 60)) (local.get 2)"},
		{"deep recursion", "(func $f (param i32) (if (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1))))))",
			forever("(call $f (i32.const 20000))")},
		{"trap in a deep recursion", "(func $f (call $f))", "(call $f) (local.get 2)"},
		{"return from a deep recursion", chain + "(func $leaf (param i32) (result i32) " + flatChain(46) + ") (func $f (param i32 i32) (if (local.get 1) (then (call $f (local.get 0) (i32.sub (local.get 1) (i32.const 1)))))" +
			strings.Repeat("(local.set 0 (call $leaf (local.get 0)))", 60) + ")", forever("(call $f (i32.const 2097152) (i32.const 1500))")},
		{"functions that do not check", chain + "(func $leaf (param i32) (result i32) " + flatChain(46) + ") (func $f (param i32) (result i32) (local.get 0) " + strings.Repeat("(call $leaf)", 8_000) + ")",
			forever("(drop (call $f (i32.const 2097152)))")},
		{"pointer chasing", chain, first + forever("(local.set 0 "+flatChain(64)+")")},
		{"long code of loads", chain, first + forever("(local.set 0 "+flatChain(15_000)+")")},
		{"branches around checks", "", forever(strings.Repeat("(block $b (br_if $b (i32.const 1)) "+strings.Repeat("(local.set 2 (i64.mul (local.get 2) (local.get 2)))", 1700)+")", 4))},
		{"memory.fill of all memory", "", "(drop (memory.grow (i32.const 1010)))" + forever("(memory.fill (i32.const 0) (i32.const 7) (i32.const 66000000))")},
		{"memory.copy of all memory", "", "(drop (memory.grow (i32.const 1010)))" + forever("(memory.copy (i32.const 0) (i32.const 33000000) (i32.const 33000000))")},
		{"memory.fill of new memory, shortly before the deadline", "", "(drop (memory.grow (i32.const 1010))) (local.set 0 (i32.const 30000000)) (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))" +
			forever("(memory.fill (i32.const 0) (i32.const 7) (i32.const 66000000))")},
		{"memory.copy to new memory, shortly before the deadline", "", "(drop (memory.grow (i32.const 1010))) (local.set 0 (i32.const 30000000)) (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))" +
			forever("(memory.copy (i32.const 1000000) (i32.const 0) (i32.const 65000000))")},
		{"memory.fill of nothing", "", forever("(memory.fill (i32.const 0) (i32.const 7) (i32.const 0))")},
		{"memory.init", `(data $d "` + strings.Repeat("x", 10_000) + `")`, forever("(memory.init $d (i32.const 0) (i32.const 0) (i32.const 10000))")},
		{"memory.grow by 1", "", forever("(drop (memory.grow (i32.const 1)))")},
		{"memory.grow by 0", "", forever("(drop (memory.grow (i32.const 0)))")},
		{"memory.grow and touch", "", forever("(local.set 0 (i32.mul (memory.grow (i32.const 1)) (i32.const 65536))) (if (i32.gt_s (local.get 0) (i32.const 0)) (then (memory.fill (local.get 0) (i32.const 1) (i32.const 65536))))")},
		{"table.fill", "(table $t 90000 funcref)", forever("(table.fill $t (i32.const 0) (ref.null func) (i32.const 90000))")},
		{"table.copy", "(table $t 90000 funcref)", forever("(table.copy $t $t (i32.const 0) (i32.const 1) (i32.const 89000))")},
		{"table.init", "(table $t 90000 funcref) (elem $e funcref " + strings.Repeat("(ref.null func) ", 9000) + ")", forever("(table.init $t $e (i32.const 0) (i32.const 0) (i32.const 9000))")},
		{"table.grow by 1", "(table $t 1 externref)", forever("(drop (table.grow $t (ref.null extern) (i32.const 1)))")},
		{"br_table", "", forever("(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const 1103515245)) (i32.const 12345)))" + strings.Repeat("(block ", 200) +
			"(br_table " + numbers(200) + " (i32.rem_u (i32.shr_u (local.get 0) (i32.const 16)) (i32.const 200)))" + strings.Repeat(" (local.set 1 (i32.add (local.get 1) (i32.const 1))))", 200))},
		{"joins of vectors", "", "(local " + strings.Repeat("v128 ", 1900) + ")" + forever("(block $b (br_if $b (local.get 0)) "+rotate(1900)+")")},
		{"joins of integers", "", "(local " + strings.Repeat("i64 ", 1900) + ")" + forever("(block $b (br_if $b (local.get 0)) "+rotate(1900)+")")},
		{"nested joins", "", "(local " + strings.Repeat("i64 ", 1900) + ")" + forever(strings.Repeat("(block ", 50)+"(br_if 0 (local.get 0)) "+rotate(1900)+strings.Repeat("(br_if 0 (i32.eqz (local.get 0))))", 50))},
		{"loop with many locals", "", "(local " + strings.Repeat("v128 ", 1900) + ") (block $out " + forever("(br_if $out (i32.eqz (local.get 0)))"+rotate(1900)) + ") (local.get 2)"},
		{"call with many locals", "(func $f (param i32) (local i32 i64 " + strings.Repeat("v128 ", 1900) + ") (block (br_if 0 (local.get 0)) " + rotate(1900) + ") (global.set $v (local.get 1000))) (global $v (mut v128) (v128.const i64x2 0 0))", forever("(call $f (i32.const 1))")},
		{"call_indirect", "(type $v (func)) (table $t 90000 90000 funcref) (elem (i32.const 0) " + strings.Repeat("$leaf ", 90_000) + ") (func $leaf)",
			forever("(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const 1103515245)) (i32.const 12345))) (call_indirect $t (type $v) (i32.rem_u (i32.shr_u (local.get 0) (i32.const 3)) (i32.const 90000)))")},
		{"call_indirect to itself", "(type $v (func (param i32))) (table $t 1 1 funcref) (elem (i32.const 0) $f) (func $f (type $v) (if (local.get 0) (then (call_indirect $t (type $v) (i32.sub (local.get 0) (i32.const 1)) (i32.const 0)) (call_indirect $t (type $v) (i32.sub (local.get 0) (i32.const 1)) (i32.const 0)))))",
			"(call $f (i32.const 60)) (local.get 2)"},
		{"call with 64 parameters", "(func $f (param " + strings.Repeat("i64 ", 64) + ") (result " + strings.Repeat("i64 ", 16) + ")" + strings.Repeat("(local.get 5)", 16) + ")",
			forever(strings.Repeat("(local.get 2)", 64) + "(call $f)" + strings.Repeat("(drop)", 16))},
	}
}

// flatChain returns n dependent loads that begin at the first local.
func flatChain(n int) string { return "(local.get 0)" + strings.Repeat("(i32.load)", n) }

// selects chooses n times between the locals 3 and 4, in a way that no processor predicts.
func selects(n int) string {
	return strings.Repeat("(local.set 3 (select (local.get 4) (local.get 3) (i32.lt_s (local.tee 0 (i32.add (i32.mul (local.get 0) (i32.const 1664525)) (i32.const 1013904223))) (i32.const 0))))", n)
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()
}

// rotate assigns to each of n locals the value of the next one.
func rotate(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "local.get %d local.set %d ", 3+(i+1)%n, 3+i)
	}
	return b.String()
}

// newDeadlineHost returns a host with processes, whose fuel ends no call.
func newDeadlineHost(t *testing.T, limits Limits) *Host {
	t.Helper()
	requireChildren(t)
	if limits.DecideTime == 0 {
		limits.DecideTime = DefaultLimits().DecideTime
	}
	limits.InitFuel, limits.ConfigureFuel, limits.DecideFuel = 1<<60, 1<<60, 1<<60
	return newHost(t, Options{CacheDir: noCache, Process: childCommand("plugin"), Limits: limits})
}

// module returns a plugin that does it for port 666.
func (c slow) module(t testing.TB) []byte {
	t.Helper()
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(base), ";; EVIL", c.decls+"(func $evil (param i32 i32 i64) (result i64) "+c.body+")", 1)
	return wat(t, text)
}

// Fuel is not what ends these calls: they have more than they could use in a day.
func TestEveryCallEndsByItsDeadline(t *testing.T) {
	h := newDeadlineHost(t, Limits{})
	for _, c := range slows() {
		t.Run(c.name, func(t *testing.T) { checkDeadline(t, h, c.module(t)) })
	}
	for _, c := range hostCalls() {
		t.Run("host call: "+c.name, func(t *testing.T) { checkDeadline(t, h, c.module(t, 0)) }) // 2^32 calls
	}
}

// Collections of sluice neither wait for the guest nor delay its end.
func TestCallsEndByTheirDeadlineDuringGarbageCollection(t *testing.T) {
	h := newDeadlineHost(t, Limits{})
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	for range 5 {
		checkDeadline(t, h, slows()[0].module(t))
	}
}

func TestEveryExportHasADeadline(t *testing.T) {
	h := newDeadlineHost(t, Limits{InitTime: DefaultLimits().InitTime, ConfigureTime: DefaultLimits().ConfigureTime})
	const forever = "(loop $l (br $l)) (unreachable)"
	base := mustRead(t, "../../../sdk/tck/hosts/guests/base.wat")
	base = strings.Replace(base, ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2)) ;; EVIL", 1)
	for _, c := range []struct{ name, old, text, settings, want string }{
		{"start function", ";; EVIL", "(func $s " + forever + ") (start $s)", "", "instantiate"},
		{"_initialize", ";; EVIL", `(func (export "_initialize") ` + forever + ")", "", "instantiate"},
		{"sluice_configure", ";; EVIL", `(func (export "sluice_configure") (param i32 i32) (result i32) ` + forever + ")", "{}", "sluice_configure"},
		{"sluice_needs", ";; EVIL", `(func (export "sluice_needs") (param i32) (result i32) ` + forever + ")", "", "sluice_configure"},
		{"sluice_keys", ";; EVIL", `(func (export "sluice_keys") (param i32 i32 i32) (result i32) ` + forever + ")", "", "sluice_configure"},
		{"sluice_abi_version", "(i32.const 0x20001)", forever, "", "sluice_abi_version"},
		{"sluice_alloc", "(local $at i32)", "(local $at i32) (loop $l (br $l))", "", "sluice_decide"},
		{"sluice_decide", "(local $size i64)", "(local $size i64) (loop $l (br $l))", "", "sluice_decide"},
	} {
		if strings.Count(base, c.old) != 1 {
			t.Fatalf("%s: %q is not in base.wat once", c.name, c.old)
		}
		_, err := h.Load(t.Context(), "test", wat(t, strings.Replace(base, c.old, c.text, 1)), []byte(c.settings))
		if err == nil || !strings.Contains(err.Error(), c.want+": deadline exceeded: killed after ") || !IsLate(err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A call that ends, but has taken too long, fails too, and its process goes on.
func TestCallThatWasLateFailsWithoutAnEndOfItsProcess(t *testing.T) {
	h := newDeadlineHost(t, Limits{DecideTime: time.Millisecond})
	p := load(t, h, slow{"", "", "(local.set 0 (i32.const 20000000)) (loop $l (br_if $l (i32.ne (local.tee 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 0)))) (local.get 2)"}.module(t), "")
	r := processOf(t, p)
	err := decide(p, evilPort, sampleNow)
	if err != nil && strings.Contains(err.Error(), "killed") {
		t.Skip("a slow machine")
	}
	if err == nil || !strings.Contains(err.Error(), "sluice_decide: deadline exceeded: 1 ms of CPU time") || !IsLate(err) || p.Stats().Late != 1 || r.dead() {
		t.Errorf("%v, %+v", err, p.Stats())
	}
}

// checkDeadline checks that a call is ended, by the CPU time of its process.
func checkDeadline(t *testing.T, h *Host, module []byte) {
	t.Helper()
	p := load(t, h, module, "")
	defer p.Close()
	if err := decide(p, 80, sampleNow); err != nil { // an instance
		t.Fatal(err)
	}
	begin := p.ProcessCPU()
	err := decide(p, evilPort, sampleNow)
	used := p.ProcessCPU() - begin
	stats := p.Stats()
	switch {
	case err == nil:
		t.Errorf("it answered after %s", used)
	case strings.Contains(err.Error(), "call stack exhausted"):
	case !IsLate(err) || stats.Late != 1 || stats.OutOfFuel != 0:
		t.Errorf("%v; %+v", err, stats)
	}
	t.Logf("%s, %v", used, err)
}

// BenchmarkFuel measures the CPU time of a unit of fuel for code that is slow in each way.
func BenchmarkFuel(b *testing.B) {
	h := newHost(b, Options{CacheDir: noCache, Limits: Limits{DecideFuel: 20_000_000, DecideTime: time.Second}})
	for _, c := range slows() {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) {
			p := load(b, h, c.module(b), "")
			var used, fuel int64
			for b.Loop() {
				b.StopTimer()
				p.breakers = breakers{}
				if err := decide(p, 80, sampleNow); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				begin := processTime(b)
				if err := decide(p, 666, sampleNow); err == nil || p.Stats().Late != 0 {
					b.Fatal(err)
				}
				used += processTime(b) - begin
				fuel += int64(p.Stats().LastFuel)
			}
			b.ReportMetric(float64(used)/float64(fuel), "cpu-ns/fuel")
		})
	}
}

// A virtual machine counts time in which it does not run as CPU time. A call of the self-test that is late by that would refuse
// the module.
func TestSelfTestHasMoreTimeThanADecision(t *testing.T) {
	requireChildren(t)
	base := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1)
	module := wat(t, strings.Replace(base, "(local $size i64)", `(local $size i64) (local $k i64)
		(if (i32.ge_u (i32.load offset=76 (local.get $req)) (i32.const 1000)) (then
			(local.set $k (i64.const 20000000))
			(loop $l (br_if $l (i64.ne (local.tee $k (i64.sub (local.get $k) (i64.const 1))) (i64.const 0))))))`, 1))
	p := load(t, newHost(t, Options{Process: childCommand("plugin"), Limits: Limits{DecideFuel: 1 << 60, DecideTime: time.Millisecond, ConfigureTime: time.Second}}), module, "")
	req := SampleRequest(1000)
	req.Now = sampleNow
	var resp abi.Response
	resp.Reset(1000)
	if err := p.Decide(req, &resp); !IsLate(err) {
		t.Errorf("a decision of many steps: %v", err)
	}
}
