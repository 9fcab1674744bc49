package wasm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func decide(p *Plugin, port uint16, now int64) error {
	req := SampleRequest(3)
	req.PortNumber, req.Now = port, now
	var resp abi.Response
	resp.Reset(3)
	return p.Decide(req, &resp)
}

func TestMisbehavingGoGuestIsReplacedAndTheErrorNamesTheReason(t *testing.T) {
	var log bytes.Buffer
	p := load(t, newHost(t, Options{CacheDir: testenv.PluginCache(t), Log: textLog(&log)}), goGuest(t, "testdata/goguest"), `{"Factor": 2}`)
	if p.Needs(`{"Factor": 2}`) != abi.NeedNodes {
		t.Errorf("needs %d", p.Needs(`{"Factor": 2}`))
	}
	now := int64(sampleNow)
	for _, c := range []struct {
		port uint16
		want string
	}{
		{60001, `sluice_decide: wasm error: unreachable: "panic: on purpose"`},
		{60002, "called proc_exit(7)"},
		{60003, "out of fuel"},
		{60004, "out of fuel"},
		{60005, ""},
		{60006, ""},
		{60007, `the plugin returned an error: "refused on purpose"`},
		{60009, `assignment to entry in nil map`},
		{60010, `"panic: an error 10"`},
	} {
		log.Reset()
		now += 3600_000
		err := decide(p, c.port, now)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("port %d: %v, want %q", c.port, err, c.want)
		}
		if log.Len() > 16<<10 {
			t.Errorf("port %d: %d bytes of log", c.port, log.Len())
		}
		t.Logf("port %d: %v", c.port, err)
		for i := range 20 { // recovers
			if err := decide(p, 80, now+int64(i)*1000); err != nil {
				t.Fatalf("after port %d: %v", c.port, err)
			}
		}
	}
	s := p.Stats()
	if s.Failures != 9 || s.Instances != 10 || s.MemoryBytes > 64<<20 {
		t.Errorf("stats %+v", s)
	}
}

func TestLogIsLimitedPerCallAndPerSecond(t *testing.T) {
	var log bytes.Buffer
	p := load(t, newHost(t, Options{CacheDir: testenv.PluginCache(t), Log: textLog(&log)}), goGuest(t, "testdata/goguest"), "")
	lines := func() int { n := strings.Count(log.String(), "plugin log"); log.Reset(); return n }
	if err := decide(p, 60008, sampleNow); err != nil {
		t.Fatal(err)
	}
	if n := lines(); n != 16 {
		t.Errorf("%d lines of one call", n)
	}
	for range 100 {
		if err := decide(p, 60008, sampleNow); err != nil {
			t.Fatal(err)
		}
	}
	if n := lines(); n != 84 {
		t.Errorf("%d lines of a hundred calls in the same second, want the rest of 100", n)
	}
	if err := decide(p, 60008, sampleNow+1000); err != nil {
		t.Fatal(err)
	}
	if n := lines(); n != 10 {
		t.Errorf("%d lines a second later, want 10", n)
	}
	if p.Stats().LogDropped != 102*1000-110 {
		t.Errorf("%d dropped", p.Stats().LogDropped)
	}
}

func TestRepeatedFailuresDoubleTheSuspension(t *testing.T) {
	p := load(t, newHost(t, Options{}), wat(t, hostileWAT(t, "trap")), "")
	now := int64(sampleNow)
	var waits []time.Duration
	for range 14 {
		err := decide(p, 666, now)
		var de *DecideError
		if !errors.As(err, &de) || de.Suspended {
			t.Fatalf("at %d: %v", now-sampleNow, err)
		}
		waits = append(waits, de.RetryAfter)
		if p.Stats().Suspended.Ports > 0 {
			calls := p.Stats().Calls
			if err := decide(p, 80, now+de.RetryAfter.Milliseconds()-1); !errors.As(err, &de) || !de.Suspended || !strings.Contains(err.Error(), "unreachable") {
				t.Fatalf("while suspended: %v", err)
			}
			if p.Stats().Calls != calls {
				t.Fatal("it was called while suspended")
			}
		}
		now += waits[len(waits)-1].Milliseconds()
	}
	s := time.Second
	want := []time.Duration{s, s, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s, 300 * s}
	for i := range want {
		if waits[i] != want[i] {
			t.Errorf("waits %v, want %v", waits, want)
			break
		}
	}
	for range 100 {
		if err := decide(p, 80, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := decide(p, 666, now); err == nil || p.Stats().Suspended.Ports > 0 {
		t.Errorf("one failure after a hundred good answers suspends it: %v", err)
	}
}

func TestSuspensionEndsWhenTheClockGoesBack(t *testing.T) {
	p := load(t, newHost(t, Options{}), wat(t, hostileWAT(t, "trap")), "")
	for range 3 {
		_ = decide(p, 666, sampleNow)
	}
	if err := decide(p, 80, sampleNow); err == nil {
		t.Fatal("it is not suspended")
	}
	if err := decide(p, 80, sampleNow-3600_000); err != nil {
		t.Error(err)
	}
}

func TestOccasionalFailuresSuspendOnlyAboveTheRate(t *testing.T) {
	for _, c := range []struct {
		every     int
		suspended bool
	}{{2, true}, {5, true}, {20, false}} {
		p := load(t, newHost(t, Options{}), wat(t, hostileWAT(t, "trap")), "")
		got := false
		for i := range 400 {
			port := uint16(80)
			if i%c.every == 0 {
				port = 666
			}
			_ = decide(p, port, sampleNow)
			got = got || p.Stats().Suspended.Ports > 0
		}
		if got != c.suspended {
			t.Errorf("1 failure in %d: suspended %v", c.every, got)
		}
	}
}

func TestSettings(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	module := goGuest(t, "testdata/goguest")
	for _, c := range []struct{ settings, want string }{
		{`{"Factor": 3}`, ""}, {``, ""}, {`{}`, ""},
		{`{"Factor": `, "settings: invalid JSON"},
		{`{"Facto": 3}`, `settings refused: the plugin returned an error: "unknown field \"Facto\""`},
		{`{"Factor": "x"}`, `settings refused: the plugin returned an error: "Factor: want an integer, got a string"`},
		{`"` + strings.Repeat("x", 2<<20) + `"`, "settings: 2097154 bytes, the limit is 1048576"},
	} {
		p, err := h.Load(context.Background(), "test", module, []byte(c.settings))
		if c.want == "" {
			if err != nil {
				t.Errorf("%.30s: %v", c.settings, err)
			} else {
				p.Close()
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.30s: %v, want %s", c.settings, err, c.want)
		}
	}
	if _, err := h.Load(context.Background(), "test", goodWAT(t), []byte(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "accepts none") {
		t.Errorf("settings for a plugin without: %v", err)
	}
}

func TestRevisionDependsOnTheModule(t *testing.T) {
	h := newHost(t, Options{})
	c := cGuest(t, "../../../examples/plugin-c/zone_first.c")
	seen := map[string]bool{}
	for _, p := range []*Plugin{load(t, h, c, ""), load(t, h, goodWAT(t), "")} {
		if len(p.Revision()) != 64 || seen[p.Revision()] {
			t.Errorf("revision %s", p.Revision())
		}
		seen[p.Revision()] = true
	}
	if !seen[load(t, h, c, "{}").Revision()] {
		t.Error("the same module has another revision with other settings")
	}
}

func TestClosedPluginReturnsAnError(t *testing.T) {
	h := newHost(t, Options{})
	p := load(t, h, goodWAT(t), "")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := decide(p, 80, sampleNow); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	q := load(t, h, goodWAT(t), "")
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := decide(q, 80, sampleNow); err == nil {
		t.Error("a plugin outlives its host")
	}
	if _, err := h.Load(context.Background(), "test", goodWAT(t), nil); err == nil {
		t.Error("a closed host loads")
	}
}

func TestRequestsOfAllSizesFit(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	for _, module := range [][]byte{goodWAT(t), cGuest(t, "../../../examples/plugin-c/zone_first.c"), goGuest(t, "testdata/goguest")} {
		p := load(t, h, module, "")
		for _, n := range []int{0, 1, 5000, 3, 20_000, 100} {
			req := SampleRequest(n)
			var resp abi.Response
			resp.Reset(n)
			if err := p.Decide(req, &resp); err != nil {
				t.Fatalf("%d endpoints: %v", n, err)
			}
		}
	}
}

func TestLoadCanBeCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := newHost(t, Options{CacheDir: noCache}).Load(ctx, "test", goGuest(t, "testdata/goguest"), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestInvalidLimitsAreRefused(t *testing.T) {
	if _, err := New(context.Background(), Options{Limits: Limits{DecideFuel: -1}}); err == nil || !strings.Contains(err.Error(), "DecideFuel") {
		t.Error(err)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	for name, module := range map[string][]byte{"C": cGuest(t, "../../../examples/plugin-c/zone_first.c"), "Go": goGuest(t, "../../../plugins/locality")} {
		if n := allocations(t, load(t, h, module, "")); n != 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
}

// allocations returns how many a call makes, of more than 200.
func allocations(t *testing.T, p *Plugin) float64 {
	t.Helper()
	req := SampleRequest(100)
	var resp abi.Response
	call := func() {
		resp.Reset(100)
		if err := p.Decide(req, &resp); err != nil {
			t.Fatal(err)
		}
	}
	call()
	return testing.AllocsPerRun(200, call)
}

func mustRead(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
