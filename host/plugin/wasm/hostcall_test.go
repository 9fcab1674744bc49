package wasm

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// hostCall is a call of an import with the arguments that make it do the most work.
type hostCall struct {
	name    string
	imports string // of $f, and $g if there is one
	fill    uint32 // the 4 bytes that repeat at address 310,000
	call    string
	work    int64 // bytes, vectors and subscriptions that the host reads or writes in one call
}

func hostCalls() []hostCall {
	wasi := func(name, sig string) string {
		return fmt.Sprintf(`(import "wasi_snapshot_preview1" %q (func $f %s (result i32)))`, name, sig)
	}
	write := wasi("fd_write", "(param i32 i32 i32 i32)")
	vectors := func(fd int) string {
		return fmt.Sprintf(`(drop (call $f (i32.const %d) (i32.const 300000) (i32.const 64) (i32.const 4000)))`, fd)
	}
	const log = `(import "sluice" "log" (func $f (param i32 i32 i32)))`
	all := []hostCall{
		{"fd_write, blanks", write, 0x20202020, vectors(2), 64 * abi.MaxLogLen},
		{"fd_write, newlines", write, 0x0a0a0a0a, vectors(2), 64 * abi.MaxLogLen},
		{"fd_write, short lines", write, 0x0a610a61, strings.Replace(vectors(2), "64", "1", 1), abi.MaxLogLen + abi.MaxLogLen/2*1024},
		{"fd_write, blank lines", write, 0x0a200a20, strings.Replace(vectors(2), "64", "1", 1), abi.MaxLogLen + abi.MaxLogLen/2*1024},
		{"fd_write, no newline", write, 0x61616161, vectors(1), 64 * abi.MaxLogLen},
		{"fd_write, invalid UTF-8", write, 0xfefefefe, vectors(2), 64 * abi.MaxLogLen},
		{"fd_write, control characters", write, 0x1b1b1b1b, vectors(2), 64 * abi.MaxLogLen},
		{"fd_write, both streams in turn", write, 0x61616161, vectors(1) + vectors(2), 128 * abi.MaxLogLen},
		{"poll_oneoff", wasi("poll_oneoff", "(param i32 i32 i32 i32)"), 0x61616161,
			`(drop (call $f (i32.const 310000) (i32.const 320000) (i32.const 64) (i32.const 4000)))`, 64},
		{"random_get", wasi("random_get", "(param i32 i32)"), 0, `(drop (call $f (i32.const 310000) (i32.const 100000)))`, 100_000},
		{"log, blanks", log, 0x20202020, `(call $f (i32.const 3) (i32.const 310000) (i32.const 100000))`, abi.MaxLogLen},
		{"log, invalid UTF-8", log, 0xfefefefe, `(call $f (i32.const 3) (i32.const 310000) (i32.const 100000))`, abi.MaxLogLen},
		{"log, nothing", log, 0, `(call $f (i32.const 3) (i32.const 310000) (i32.const 0))`, 0},
		{"fd_fdstat_get", wasi("fd_fdstat_get", "(param i32 i32)"), 0, `(drop (call $f (i32.const 2) (i32.const 310000)))`, 0},
		{"clock_time_get", wasi("clock_time_get", "(param i32 i64 i32)"), 0, `(drop (call $f (i32.const 0) (i64.const 0) (i32.const 310000)))`, 0},
		{"sched_yield", wasi("sched_yield", ""), 0, `(drop (call $f))`, 0},
	}
	for _, name := range []string{"args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_res_get"} {
		all = append(all, hostCall{name, wasi(name, "(param i32 i32)"), 0, `(drop (call $f (i32.const 310000) (i32.const 310008)))`, 0})
	}
	return all
}

// module returns a plugin that makes the call n times for port 666.
func (c hostCall) module(t testing.TB, n int) []byte {
	t.Helper()
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	evil := fmt.Sprintf(`(func $evil (param i32 i32 i64) (result i64) (local $i i32)
	(local.set $i (i32.const 310000))
	(loop $fill (i32.store (local.get $i) (i32.const %d))
		(br_if $fill (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4))) (i32.const 430000))))
	(local.set $i (i32.const 300000))
	(loop $vector (i32.store (local.get $i) (i32.const 310000)) (i32.store offset=4 (local.get $i) (i32.const %d))
		(br_if $vector (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 8))) (i32.const 300512))))
	(local.set $i (i32.const %d))
	(loop $again %s (br_if $again (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
	(local.get 2))`, int32(c.fill), 1<<20, n, c.call)
	text := strings.Replace(string(base), ";; EVIL", evil, 1)
	return wat(t, strings.Replace(text, "(module", "(module "+c.imports, 1))
}

// fuel returns the fuel of n calls and everything around them.
func (c hostCall) fuel(t testing.TB, h *Host, n int) int64 {
	t.Helper()
	p := load(t, h, c.module(t, n), "")
	defer p.Close()
	if err := decide(p, 666, sampleNow); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	return int64(p.Stats().LastFuel)
}

func TestHostCallsAreChargedByTheirWork(t *testing.T) {
	h := newHost(t, Options{})
	tried := map[string]bool{}
	for _, c := range hostCalls() {
		tried[strings.Split(c.imports, `"`)[3]] = true
		perCall := c.fuel(t, h, 2) - c.fuel(t, h, 1)
		if perCall < 64+c.work {
			t.Errorf("%s: a call costs %d, less than its work of %d", c.name, perCall, c.work)
		}
	}
	// All others return a constant, or end the guest.
	constant := map[string]bool{"fd_close": true, "fd_fdstat_set_flags": true, "fd_prestat_get": true, "fd_prestat_dir_name": true,
		"fd_read": true, "fd_seek": true, "proc_exit": true}
	for _, funcs := range hostFuncs() {
		for name := range funcs {
			if !tried[name] && !constant[name] {
				t.Errorf("%s: no case for its cost", name)
			}
		}
	}
}

// Code without loops and functions is not checked by the guest itself.
func TestHostCallsEndAGuestWithoutFuel(t *testing.T) {
	c := hostCalls()[0]
	c.call = strings.Repeat(c.call, 500) // 262,144 each
	p := load(t, newHost(t, Options{CacheDir: noCache}), c.module(t, 1), "")
	if err := decide(p, 666, sampleNow); err == nil || !strings.Contains(err.Error(), "out of fuel") {
		t.Errorf("%v, want out of fuel", err)
	}
	if used := p.Stats().LastFuel; used > 20_060_000 {
		t.Errorf("it used %d", used)
	}
}

// A call logs a few lines only, so what it allocates does not grow with what the guest writes.
func TestHostCallsAllocateLittle(t *testing.T) {
	h := newHost(t, Options{})
	for _, c := range hostCalls() {
		per := c.fuel(t, h, 2) - c.fuel(t, h, 1)
		p := load(t, h, c.module(t, int(15_000_000/per)), "")
		if err := decide(p, 666, sampleNow); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const calls = 5
		for i := range calls {
			if err := decide(p, 666, sampleNow+int64(i)*1000); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / calls; n > 128<<10 {
			t.Errorf("%s: %d bytes allocated by one plugin call", c.name, n)
		}
		p.Close()
	}
}

// BenchmarkHostCalls measures the worst case of each import in nanoseconds of CPU time per unit of fuel.
func BenchmarkHostCalls(b *testing.B) {
	h := newHost(b, Options{CacheDir: noCache})
	for _, c := range hostCalls() {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) {
			per := c.fuel(b, h, 2) - c.fuel(b, h, 1)
			benchmarkFuel(b, load(b, h, c.module(b, int(5_000_000/per)), ""))
		})
	}
}

// benchmarkFuel reports the CPU time per unit of fuel of calls for port 666.
func benchmarkFuel(b *testing.B, p *Plugin) {
	b.Helper()
	begin := processTime(b)
	for b.Loop() {
		if err := decide(p, 666, sampleNow); err != nil {
			b.Fatal(err)
		}
	}
	used := processTime(b) - begin
	b.ReportMetric(float64(used)/float64(b.N)/float64(p.Stats().LastFuel), "cpu-ns/fuel")
	b.ReportMetric(float64(p.Stats().LastFuel), "fuel/op")
}
