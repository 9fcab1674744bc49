package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

func loadWith(t testing.TB, h *Host, module []byte, o LoadOptions) *Plugin {
	t.Helper()
	p, err := h.LoadWith(context.Background(), "test", module, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// ask calls a plugin for a Service of a namespace.
func ask(p *Plugin, namespace string, port uint16, now int64) (abi.Response, error) {
	req := SampleRequest(3)
	req.Namespace, req.PortNumber, req.Now, req.Generation = namespace, port, now, uint64(now)
	var resp abi.Response
	resp.Reset(3)
	err := p.Decide(req, &resp)
	return resp, err
}

const later = sampleNow + 3600_000 // later than all samples

// maxCalls is in the order of the age of the universe that a sampled 64th of so many calls contains none of interest.
const maxCalls = 64 * 64

func TestRepeatsFindImpurePlugins(t *testing.T) {
	h := newHost(t, Options{})
	impureModules(t, func(t *testing.T, module []byte, when string, want *regexp.Regexp) {
		if when == "load" {
			return
		}
		p := loadWith(t, h, module, LoadOptions{RepeatOneIn: 64})
		var err error
		calls := 0
		for ; err == nil && calls < maxCalls; calls++ {
			req := randomRequest(uint64(calls))
			req.Now, req.Namespace = later+int64(calls)*1000, "shop"
			if calls == firstDecisions+10 {
				req.PortNumber = 666
			}
			var resp abi.Response
			resp.Reset(len(req.Endpoints))
			err = p.Decide(req, &resp)
		}
		s := p.Stats()
		if when == "pure" {
			if err != nil || s.Repeats.Equal < firstDecisions/8 || s.Repeats.Different+s.Repeats.Failed+s.Repeats.Skipped > 0 {
				t.Errorf("%v, %+v", err, s)
			}
			return
		}
		var de *DecideError
		var impure *ImpureError
		if !errors.As(err, &de) || !de.Suspended || !errors.As(err, &impure) {
			t.Fatalf("after %d calls: %v", calls, err)
		}
		t.Logf("after %d calls: %v", calls, err)
		if !strings.HasPrefix(err.Error(), "suspended until another revision is loaded: Service shop/service-") || !strings.Contains(err.Error(), "endpoint 10.0.0.0:8080 gets the value ") ||
			len(err.Error()) > 700 || strings.Contains(err.Error(), "\n") {
			t.Errorf("the error does not help: %v", err)
		}
		if s.Repeats.Different != 1 || s.Suspended.Modules != 1 || s.Failures != 1 || s.Open != 0 || s.MemoryBytes != 0 {
			t.Errorf("stats %+v", s)
		}
		_, again := ask(p, "shop", 80, later+1e9)
		if again == nil || again.Error() != err.Error() {
			t.Errorf("then: %v", again)
		}
		// A tenant reads the errors of its Services in Events.
		_, other := ask(p, "bank", 80, later+1e9)
		if !errors.As(other, &de) || !de.Suspended || strings.Contains(other.Error(), "shop") || strings.Contains(other.Error(), "weight") {
			t.Errorf("a Service of another namespace: %v", other)
		}
		if p.Stats().Calls != s.Calls {
			t.Error("it is called while it is suspended")
		}
	})
}

// burner returns base.wat with a loop of n instructions or more in each decision.
func burner(t testing.TB, n int, more string) []byte {
	t.Helper()
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(base), "(global.set $cap (local.get $cap))",
		fmt.Sprintf("(global.set $cap (i32.const %d)) (loop $burn (br_if $burn (global.set $cap (i32.sub (global.get $cap) (i32.const 1))) (global.get $cap)))%s", n, more), 1)
	return wat(t, strings.Replace(text, ";; EVIL", "(global $seen (mut i32) (i32.const 0)) (func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1))
}

func TestRepeatsHaveAShareOfTheFuel(t *testing.T) {
	h := newHost(t, Options{})
	for _, oneIn := range []int{2, 64} {
		p := loadWith(t, h, burner(t, 200_000, ""), LoadOptions{RepeatOneIn: oneIn})
		for i := range 200 {
			if _, err := ask(p, "shop", 80, later+int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		s := p.Stats()
		limit := repeatBurst + s.Fuel/uint64(max(1, oneIn/4)) + s.MaxFuel*(warmUps+1)
		if s.Repeats.Fuel > limit || s.Repeats.Equal == 0 || oneIn == 64 && s.Repeats.Skipped == 0 {
			t.Errorf("1 in %d: %+v", oneIn, s)
		}
	}
}

func TestRepeatsAreSampledByRequest(t *testing.T) {
	h := newHost(t, Options{})
	p := loadWith(t, h, goodWAT(t), LoadOptions{RepeatOneIn: 16})
	const calls = 16_000
	for i := range calls {
		if _, err := ask(p, "shop", 80, later+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	s := p.Stats()
	// A binomial distribution has a standard deviation of 31.
	if n := s.Repeats.Equal - firstDecisions/2; n < calls/16-300 || n > calls/16+300 || s.Repeats.Different+s.Repeats.Failed > 0 {
		t.Errorf("%d of %d repeated: %+v", n, calls, s.Repeats)
	}
	p.repeats.first = 0
	for i := range uint64(200) {
		if a, b := p.repeats.due(randomRequest(i)), p.repeats.due(randomRequest(i)); a != b {
			t.Errorf("request %d is repeated once of two times", i)
		}
	}
	if s.Instances != 1+1+s.Repeats.Equal/repeatsPerInstance {
		t.Errorf("%d instances for %d repeats", s.Instances, s.Repeats.Equal)
	}
}

// A plugin that answers unless it is repeated cannot be checked.
func TestFailedRepeatsInARowSuspend(t *testing.T) {
	for name, c := range map[string]struct {
		misbehave string // in an instance that has seen the self-test
		reason    string
	}{
		"trap":      {"(unreachable)", "unreachable"},
		"loop":      {"(loop (br 0))", "out of fuel"},
		"exit code": {"(return (i64.const -1))", "the plugin returned an error"},
	} {
		t.Run(name, func(t *testing.T) {
			p := loadWith(t, newHost(t, Options{}), burner(t, 1000, `
				(if (i64.le_u (i64.load offset=16 (local.get $req)) (i64.const 1700000030000)) (then (global.set $seen (i32.const 1))))
				(if (i32.and (global.get $seen) (i64.gt_u (i64.load offset=16 (local.get $req)) (i64.const 1700000030000))) (then `+c.misbehave+`))`),
				LoadOptions{RepeatOneIn: 1})
			var err error
			calls := 0
			for ; err == nil && calls < 2*maxFailedRepeats; calls++ {
				_, err = ask(p, "shop", 80, later+int64(calls))
			}
			s := p.Stats()
			if calls != maxFailedRepeats || !strings.Contains(err.Error(), c.reason) || s.Suspended.Modules != 1 || s.Repeats.Failed != maxFailedRepeats || s.Repeats.Different != 0 || s.Open != 0 {
				t.Errorf("after %d calls: %v, %+v", calls, err, s)
			}
			if s.Repeats.Fuel > maxFailedRepeats*(s.MaxFuel*(2+warmUps)+2*uint64(p.Report().InitFuel)+repeatSlack) {
				t.Errorf("repeats used %d of fuel, calls %d", s.Repeats.Fuel, s.Fuel)
			}
		})
	}
}

// leaky carries the port of one request to the next, unless it has seen the self-test.
func leaky(t testing.TB) []byte {
	t.Helper()
	return wat(t, impureWAT(t, "testdata/impure/carries-the-port-when-it-is-not-tested.wat"))
}

func TestNothingIsCarriedBetweenNamespacesWithInstancesOfTheirOwn(t *testing.T) {
	h := newHost(t, Options{})
	for _, isolated := range []bool{false, true} {
		p := loadWith(t, h, leaky(t), LoadOptions{PerNamespace: isolated, Instances: 4})
		leaks := 0
		for i := range 300 {
			tenant := i * 7 % 10
			resp, err := ask(p, fmt.Sprintf("ns-%d", tenant), uint16(1000+tenant), later+int64(i))
			if err != nil {
				t.Fatal(err)
			}
			if v := resp.Results[0].Value; v != 0 && v != uint32(1000+tenant) {
				leaks++
			}
		}
		if (leaks == 0) != isolated {
			t.Errorf("isolated %t: %d answers contain the port of another namespace", isolated, leaks)
		}
		s := p.Stats()
		if want := map[bool]int{false: 1, true: 4}[isolated]; s.Open != want || s.MemoryBytes < uint64(want)*512<<10 || s.MemoryBytes > uint64(want)*600<<10 {
			t.Errorf("isolated %t: %+v", isolated, s)
		}
		if isolated != (s.Evicted > 0) || s.Instances != uint64(s.Open)+s.Evicted {
			t.Errorf("isolated %t: %+v", isolated, s)
		}
	}
}

func TestLeastRecentlyUsedInstanceMakesRoom(t *testing.T) {
	p := loadWith(t, newHost(t, Options{}), goodWAT(t), LoadOptions{PerNamespace: true, Instances: 2})
	for i, c := range []struct {
		namespace string
		fresh     bool
	}{{"a", true}, {"b", true}, {"a", false}, {"c", true}, {"a", false}, {"b", true}, {"a", false}, {"c", true}} {
		before := p.Stats().Instances
		if _, err := ask(p, c.namespace, 80, later); err != nil {
			t.Fatal(err)
		}
		if fresh := p.Stats().Instances > before; fresh != c.fresh {
			t.Errorf("call %d, of %s: a new instance: %t", i, c.namespace, fresh)
		}
	}
	// Instances that repeat decisions make room first.
	p = loadWith(t, newHost(t, Options{}), goodWAT(t), LoadOptions{PerNamespace: true, Instances: 3, RepeatOneIn: 1})
	for _, ns := range []string{"a", "b", "a", "b"} {
		if _, err := ask(p, ns, 80, later); err != nil {
			t.Fatal(err)
		}
	}
	if p.pool.guests[instanceKey{namespace: "a"}] == nil || p.pool.guests[instanceKey{namespace: "b"}] == nil || len(p.pool.guests) != 3 {
		t.Errorf("%+v", p.pool.guests)
	}
}

func TestRepeatsDoNotAllocate(t *testing.T) {
	p := loadWith(t, newHost(t, Options{}), cGuest(t, "../../../examples/plugin-c/zone_first.c"), LoadOptions{PerNamespace: true, RepeatOneIn: 1})
	if n := allocations(t, p); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
	if s := p.Stats(); s.Repeats.Equal < 200 {
		t.Errorf("%+v", s.Repeats)
	}
}

// Namespaces whose Services fail suspend the plugin for others until one of those succeeds; with isolation, not at all.
func TestFailuresSuspendTheNamespaceOnly(t *testing.T) {
	h := newHost(t, Options{})
	for _, isolated := range []bool{false, true} {
		p := loadWith(t, h, wat(t, hostileWAT(t, "trap")), LoadOptions{PerNamespace: isolated})
		for i := range 9 {
			_ = askFor(p, fmt.Sprint("bad", i%3), fmt.Sprint("s", i/3), abi.Settings{}, 666, later)
		}
		bad, good := askFor(p, "bad0", "new", abi.Settings{}, 80, later), askFor(p, "good", "s", abi.Settings{}, 80, later)
		if suspendedError(bad) == nil || (good == nil) != isolated {
			t.Errorf("isolated %t: %v, %v", isolated, bad, good)
		}
		for _, namespace := range []string{"good", "bad0"} {
			if err := askFor(p, namespace, "new", abi.Settings{}, 80, later+1000); err != nil {
				t.Errorf("isolated %t: the time has passed: %v", isolated, err)
			}
		}
		_ = askFor(p, "other", "s", abi.Settings{}, 666, later+7200_000)
		if len(p.breakers.ports) != 1 {
			t.Errorf("isolated %t: %d failing Service ports", isolated, len(p.breakers.ports))
		}
		for i := range int64(100) {
			if err := askFor(p, "other", "s", abi.Settings{}, 80, later+7300_000+i); err != nil {
				t.Fatal(err)
			}
		}
		if s := p.Stats(); s.Suspended != (Suspensions{}) || !p.breakers.idle() {
			t.Errorf("isolated %t: after it recovered: %+v, %+v", isolated, s.Suspended, p.breakers)
		}
	}
}

func TestInstancesLeaveMemoryForOtherPlugins(t *testing.T) {
	const limit = 16 << 20
	h := newHost(t, Options{Memory: limit})
	p := loadWith(t, h, goodWAT(t), LoadOptions{PerNamespace: true, Instances: 200, RepeatOneIn: 2})
	for i := range 300 {
		if _, err := ask(p, fmt.Sprintf("ns-%d", i%60), 80, later+int64(i)*1000); err != nil {
			t.Fatal(err)
		}
		if used, _ := h.MemoryInUse(); used > limit*7/8 {
			t.Fatalf("after %d calls: %d bytes are in use of %d", i, used, limit)
		}
	}
	s := p.Stats()
	if s.Evicted == 0 || s.Open < 5 || s.Repeats.Different+s.Repeats.Failed > 0 || s.Failures > 0 {
		t.Errorf("%+v", s)
	}
	q := load(t, h, goodWAT(t), "")
	checkGood(t, q, later)

	// Compiling needs more than is left.
	used, _ := h.MemoryInUse()
	h.limits.Compile.Memory = limit - used + 1 + untouched
	if err := h.reserveForCompiler(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Open != 1 {
		t.Errorf("%+v", s)
	}
	h.memory.release(h.limits.Compile.resident())
	if _, err := ask(p, "ns-1", 80, later+3600_000); err != nil {
		t.Fatal(err)
	}
}

// TestSparePluginsLeaveMemoryForOthers: a guest fails if it cannot grow by 7.5 MiB, of 8 that are left.
func TestSparePluginsLeaveMemoryForOthers(t *testing.T) {
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	greedy := wat(t, strings.Replace(string(base), ";; EVIL", `(func $evil (param i32 i32 i64) (result i64)
		(if (i32.eq (memory.grow (i32.const 120)) (i32.const -1)) (then (return (i64.const -1)))) (local.get 2))`, 1))
	h := newHost(t, Options{})
	spare, other := loadWith(t, h, greedy, LoadOptions{Spare: true}), loadWith(t, h, greedy, LoadOptions{})
	for _, p := range []*Plugin{spare, other} {
		if _, err := ask(p, "shop", 80, later); err != nil {
			t.Fatal(err)
		}
	}
	h.memory.limit = h.memory.inUse() + 8<<20
	if _, err := ask(spare, "shop", 666, later); err == nil {
		t.Error("a spare plugin has got memory that is for others")
	}
	if _, err := ask(other, "shop", 666, later); err != nil {
		t.Error(err)
	}
	if _, err := ask(spare, "shop", 80, later+60_000); err == nil || !isMemoryError(err) {
		t.Errorf("got %v, want an error because there is no memory for an instance", err)
	}
	h.memory.limit = DefaultMemory
	if _, err := ask(spare, "shop", 80, later+120_000); err != nil {
		t.Fatal(err)
	}
	h.memory.limit = h.memory.inUse()
	if h.reserveForCompiler(t.Context()) == nil || spare.Stats().Open != 0 || other.Stats().Open != 1 {
		t.Errorf("after compiling lacked memory: %d and %d instances, want 0 and 1", spare.Stats().Open, other.Stats().Open)
	}
}

// What an instance answers while other plugins take up the memory is no proof against it.
func TestRepeatsNeedMemory(t *testing.T) {
	h := newHost(t, Options{})
	p := loadWith(t, h, goodWAT(t), LoadOptions{RepeatOneIn: 1})
	h.memory.limit = h.memory.inUse() + 1
	if _, err := ask(p, "shop", 80, later); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Repeats.Skipped != 1 || s.Open != 1 {
		t.Errorf("without memory for a second instance: %+v", s)
	}
	h.memory.limit = DefaultMemory
	grows := loadWith(t, h, burner(t, 1, `
		(if (i64.gt_u (i64.load offset=16 (local.get $req)) (i64.const 1700000030000)) (then
			(if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then (return (i64.const -1))))))`), LoadOptions{RepeatOneIn: 1})
	for i := range int64(3) {
		if _, err := ask(grows, "shop", 80, later+i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(3 * maxFailedRepeats) {
		h.memory.limit = DefaultMemory // a second instance starts
		if i%2 > 0 {
			h.memory.limit = h.memory.inUse() + 64<<10 // enough for the first one to grow
		}
		if _, err := ask(grows, "shop", 80, later+10+i); err != nil {
			t.Fatal(err)
		}
	}
	if s := grows.Stats(); s.Suspended.Modules > 0 || s.Repeats.Failed+s.Repeats.Skipped < maxFailedRepeats || s.Repeats.Different > 0 {
		t.Errorf("%+v", s)
	}
}

// TestIdlePluginsReleaseMemory: instances that only repeat decisions are closed when no decision was made for a while, at no cost
// for the plugin; then they come back.
func TestIdlePluginsReleaseMemory(t *testing.T) {
	h := newHost(t, Options{})
	p := loadWith(t, h, goGuest(t, "testdata/goguest"), LoadOptions{RepeatOneIn: 1})
	now := int64(later)
	decide := func() {
		t.Helper()
		now += 1000
		if _, err := ask(p, "shop", 80, now); err != nil {
			t.Fatal(err)
		}
	}
	decide()
	h.ReleaseIdle() // there was a decision since the start
	if s := p.Stats(); s.Open != 2 || s.Repeats.Equal != 1 {
		t.Fatalf("%d instances, %+v", s.Open, s.Repeats)
	}
	for range 200 { // more often than the fuel for repeats would pay for new instances
		h.ReleaseIdle()
		if s := p.Stats(); s.Open != 1 {
			t.Fatalf("%d instances of an idle plugin", s.Open)
		}
		decide()
		h.ReleaseIdle()
	}
	if s := p.Stats(); s.Open != 2 || s.Repeats.Equal != 201 || s.Repeats.Skipped > 0 || s.Failures > 0 {
		t.Errorf("%d instances, %+v, %d failures", s.Open, s.Repeats, s.Failures)
	}
	p.mu.Lock() // a call that takes long
	defer p.mu.Unlock()
	h.ReleaseIdle()
}
