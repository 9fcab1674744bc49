package dispatch

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pluginProcess {
		os.Exit(wasm.ProcessMain(os.Args[2:], os.Stderr))
	}
	testenv.MainWithoutLeaks(m)
}

// sleeper is a plugin that takes a time, which the tests count as CPU time.
type sleeper struct {
	took time.Duration
	err  error

	mu    sync.Mutex
	calls []string // names of Services
}

func (p *sleeper) Decide(req *abi.Request, _ *abi.Response) error {
	p.mu.Lock()
	p.calls = append(p.calls, req.Service)
	took, err := p.took, p.err
	p.mu.Unlock()
	time.Sleep(took)
	return err
}

// set changes the plugin for the calls that follow.
func (p *sleeper) set(took time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took, p.err = took, err
}

// called returns the names of the Services for which the plugin was called.
func (p *sleeper) called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (*sleeper) Needs(string) uint32  { return 0 }
func (*sleeper) Keys(string) []string { return nil }
func (*sleeper) Counters() []string   { return nil }
func (*sleeper) Role() abi.Role       { return abi.RoleReduce }

func (*sleeper) Revision() string { return "1" }

// bed is a Dispatcher in a synctest bubble with the clock as CPU time.
type bed struct {
	*Dispatcher
	testing.TB
	log testenv.Buffer
}

func newBed(t testing.TB, cpuPercent, workers int) *bed {
	b := &bed{TB: t}
	start := time.Now()
	b.Dispatcher = New(Options{CPUPercent: cpuPercent, Log: slog.New(slog.NewTextHandler(&b.log, nil)), workers: workers,
		threadCPU: func() time.Duration { return time.Since(start) }})
	t.Cleanup(func() {
		if !b.Stop(time.Hour) {
			t.Error("not stopped")
		}
	})
	return b
}

// call calls Call.
func (b *bed) call(wait time.Duration, calls ...*policy.Call) []*policy.Call {
	return b.Call(calls, wait)
}

// look shows the first queue, which workers change.
func (b *bed) look(f func(q *queue)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.queues[0])
}

func call(p policy.Plugin, plugin, namespace, service string, port int) *policy.Call {
	return &policy.Call{
		Name: plugin, Plugin: p,
		Key:     policy.PoolKey{Port: model.PortName{Service: model.Name{Namespace: namespace, Name: service}, Port: fmt.Sprint(port)}},
		Request: abi.Request{Service: service, Endpoints: make([]abi.Endpoint, 1)},
	}
}

func TestCallWaitsForFastAnswerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		fast, slow := &sleeper{took: 10 * time.Microsecond}, &sleeper{took: time.Second}
		const wait = 2 * time.Millisecond
		if got := b.call(wait, call(fast, "fast", "a", "x", 1)); len(got) != 1 {
			t.Fatalf("%d answers", len(got))
		}
		start := time.Now()
		late := call(slow, "slow", "a", "x", 1)
		if got, took := b.call(wait, late), time.Since(start); len(got) != 0 || took > wait {
			t.Fatalf("%d answers after %s", len(got), took)
		}
		start = time.Now()
		b.call(wait, call(slow, "slow", "a", "x", 1)) // while a call of the pool is running, another one is dropped
		if got, took := b.call(wait, call(slow, "slow", "a", "y", 1)), time.Since(start); len(got) != 0 || took > 0 {
			t.Fatalf("%d answers after %s: the plugin is known to be slow", len(got), took)
		}
		<-b.Ready()
		if got := b.call(0); len(got) != 1 || got[0] != late {
			t.Fatalf("answers %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		slow.set(time.Microsecond, nil)
		if got := b.call(wait, call(slow, "slow", "a", "x", 1)); len(got) != 1 || got[0].Request.Service != "y" {
			t.Fatalf("%d answers: its last call was slow", len(got))
		}
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if got := b.call(wait, call(slow, "slow", "a", "x", 1)); len(got) != 2 {
			t.Fatalf("%d answers: its last call was fast", len(got))
		}
	})
}

// TestOneCallIsNotWaitedForAsLongAsAll: a step may wait long for many fast answers, and not for one slow one.
func TestOneCallIsNotWaitedForAsLongAsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 2)
		slow, fast := &sleeper{took: time.Second}, &sleeper{took: 100 * time.Microsecond}
		start := time.Now()
		var some, many []*policy.Call
		for i := range 5 {
			some = append(some, call(slow, "slow", "a", fmt.Sprint("x", i), 1))
		}
		for i := range maxNamespaceCalls {
			many = append(many, call(fast, "fast", "a", fmt.Sprint("x", i), 1))
		}
		if got, took := b.call(300*time.Millisecond, some...), time.Since(start); len(got) != 0 || took > maxCallWait {
			t.Errorf("%d answers, waited %s", len(got), took)
		}
		start = time.Now()
		if got, took := b.call(300*time.Millisecond, many...), time.Since(start); len(got) != len(many) {
			t.Fatalf("%d of %d answers after %s", len(got), len(many), took)
		}
		slow.set(0, nil)
	})
}

func TestNewestCallKeepsThePlaceOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{took: time.Second}
		for _, name := range []string{"running", "x", "y"} {
			b.call(0, call(p, "p", "a", name, 1))
			synctest.Wait()
		}
		newest := call(p, "p", "a", "x", 1)
		newest.Request.Endpoints = make([]abi.Endpoint, 7)
		b.call(0, newest)
		time.Sleep(4 * time.Second)
		if got := b.call(0); len(got) != 3 || got[1] != newest || !slices.Equal(p.called(), []string{"running", "x", "y"}) {
			t.Fatalf("%v, calls %v", got, p.called())
		}
		if l := &b.queues[0].calls; l.endpoints != 0 || l.idle != 0 || l.len() != 0 || len(l.of) != 0 || len(l.turns) != 0 {
			t.Fatalf("%+v", l)
		}
	})
}

// TestNamespacesTakeTurns: a Service with many ports does not fill the queue, and does not delay the Service of another
// namespace.
func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{took: time.Second}
		var crowd []*policy.Call
		for port := range 1000 {
			crowd = append(crowd, call(p, "p", "crowd", "x", port))
		}
		b.call(0, crowd...)
		b.look(func(q *queue) {
			if n := q.calls.len(); n > maxNamespaceCalls || q.queued() < 999 || q.room("crowd") {
				t.Fatalf("%d calls kept of %d, want %d", n, q.queued(), maxNamespaceCalls)
			}
		})
		b.call(0, call(p, "p", "quiet", "y", 1))
		b.look(func(q *queue) {
			if q.calls.of["quiet"] == nil {
				t.Fatal("a call of another namespace is not kept")
			}
		})
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if !slices.Contains(p.called()[:min(4, len(p.called()))], "y") {
			t.Fatalf("calls %v", p.called())
		}
		p.set(0, nil)
	})
}

// TestPoolsAskAgainWhenThereIsRoom: each one once, also those whose first call is not kept, and in turns of their namespaces.
func TestPoolsAskAgainWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{took: time.Millisecond}
		const each = 2 * maxCalls
		asked := map[policy.PoolKey]int{}
		var calls []*policy.Call
		for i := range each {
			for _, namespace := range []string{"a", "b", "c"} {
				calls = append(calls, call(p, "p", namespace, namespace, i))
			}
		}
		b.call(0, calls...)
		b.look(func(q *queue) {
			if n := q.calls.len(); n > maxCalls || q.calls.endpoints > maxEndpoints {
				t.Fatalf("%d calls are kept", n)
			}
		})
		for range 10 * each {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			var again []*policy.Call
			for _, c := range b.call(0) {
				if c.Plugin == nil {
					again = append(again, call(p, c.Name, namespaceOf(&c.Key), namespaceOf(&c.Key), 0))
					again[len(again)-1].Key = c.Key
				} else {
					asked[c.Key]++
				}
			}
			b.call(0, again...)
			if n := map[string]int{}; len(asked) == each {
				for k := range asked {
					n[namespaceOf(&k)]++
				}
				if n["a"] < each/4 || n["b"] < each/4 || n["c"] < each/4 {
					t.Errorf("answers %v", n)
				}
			}
		}
		for k, n := range asked {
			if n != 1 {
				t.Errorf("%s: %d answers", k, n)
			}
		}
		if q := b.queues[0]; len(asked) != 3*each || q.queued() != 0 || q.calls.idle != 0 {
			t.Errorf("%d pools of %d answered, %d wait", len(asked), 3*each, q.queued())
		}
	})
}

// TestWithdrawnCallsTakeNoRoom: neither those that wait nor those that were to be asked for again.
func TestWithdrawnCallsTakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{took: time.Minute}
		var calls, withdrawn []*policy.Call
		for port := range 2 * maxNamespaceCalls {
			calls = append(calls, call(p, "p", "a", "x", port))
			withdrawn = append(withdrawn, &policy.Call{Key: calls[port].Key, Name: "p"})
		}
		b.call(0, calls...)
		synctest.Wait()
		b.call(0, withdrawn...)
		if q := b.queues[0]; q.queued() != 0 || q.calls.idle != 0 || q.calls.endpoints != 0 || !q.room("a") {
			t.Errorf("%d wait, %d endpoints", q.queued(), q.calls.endpoints)
		}
		p.set(0, nil)
	})
}

func TestLargeRequestIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{took: time.Second}
		b.call(0, call(p, "p", "a", "running", 1))
		synctest.Wait()
		large := call(p, "p", "a", "large", 1)
		large.Request.Endpoints = make([]abi.Endpoint, 100_000)
		b.call(0, large, call(p, "p", "a", "next", 1))
		b.look(func(q *queue) {
			if q.calls.index[large.Key] == nil || q.calls.len() != 1 || q.places.len() != 1 {
				t.Fatalf("%d calls, %d places", q.calls.len(), q.places.len())
			}
		})
		time.Sleep(3 * time.Second)
		if got := b.call(0); len(got) != 3 || got[1].Plugin != nil && got[2].Plugin != nil {
			t.Fatalf("%d answers", len(got))
		}
	})
}

// TestSlowPluginsDelayOnlyThemselves: 5 plugins that take 20 ms of CPU time and want to be called all the time, and one that is
// called every second.
func TestSlowPluginsDelayOnlyThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 10, 1)
		names := []string{"good"}
		hostile := map[string]*sleeper{}
		for i := range 5 {
			names = append(names, fmt.Sprint("hostile", i))
			hostile[names[i+1]] = &sleeper{took: 20 * time.Millisecond}
		}
		b.Limit(10, names)
		good := &sleeper{took: 50 * time.Microsecond}
		cpu, calls := time.Duration(0), 0
		for range 120 {
			second := time.Now().Add(time.Second)
			for name, p := range hostile {
				for port := range 3 * maxNamespaceCalls {
					b.call(0, call(p, name, "a", "x", port))
				}
			}
			start := time.Now()
			b.call(0, call(good, "good", "a", "drain", 1))
			for len(good.called()) == calls {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			calls++
			most := 25 * time.Millisecond
			if calls == 1 {
				most = 5 * 25 * time.Millisecond // none has used any CPU time yet
			}
			if took := time.Since(start); took > most {
				t.Fatalf("a call of another plugin began after %s", took)
			}
			time.Sleep(time.Until(second))
		}
		for name, p := range hostile {
			used := b.Stats()[name].CPU
			if used < 900*time.Millisecond { // a sixth of 5 % of a core for 2 min
				t.Errorf("%s used only %s", name, used)
			}
			if s := b.Stats()[name]; s.Throttled < 100*time.Second || s.Queued == 0 || b.ThrottledSince(name).IsZero() {
				t.Errorf("%s: %+v", name, s)
			}
			if n := strings.Count(b.log.String(), "plugin="+name); n != 1 {
				t.Errorf("%s: logged %d times", name, n)
			}
			cpu += used
			p.set(0, nil)
		}
		if most := 12 * time.Second; cpu > most {
			t.Errorf("%s of CPU time in 2 min, want at most %s", cpu, most)
		}
		if s := b.Stats()["good"]; s.Throttled != 0 {
			t.Errorf("the other plugin was throttled for %s", s.Throttled)
		}
		b.Limit(0, names) // the queues end with the bubble
	})
}

func TestPluginThatFailsIsNotInstantiatedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &sleeper{err: &wasm.DecideError{Err: errors.New("trap")}}
		for port := range 100 {
			b.call(0, call(p, "p", "a", "x", port))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(p.called()); n < 10 || n > 11 {
			t.Errorf("%d calls in a second", n)
		}
		p.set(0, &wasm.DecideError{Err: errors.New("trap"), Suspended: true}) // does not reach the module
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(p.called()); n != 100 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestStopDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{workers: 2})
		d.Call([]*policy.Call{call(&sleeper{took: time.Minute}, "p", "a", "x", 1)}, 0)
		synctest.Wait()
		start := time.Now()
		if d.Stop(time.Second) || time.Since(start) != time.Second {
			t.Fatalf("stopped after %s", time.Since(start))
		}
		if !d.Stop(time.Hour) {
			t.Fatal("not stopped")
		}
	})
}

func TestStatsOutliveQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 10, 1)
		b.call(time.Second, call(&sleeper{took: time.Millisecond}, "p", "a", "x", 1))
		b.Limit(10, nil)
		if s := b.Stats()["p"]; s.CPU != time.Millisecond || len(b.queues) != 0 {
			t.Errorf("%+v, %d queues", s, len(b.queues))
		}
	})
}

// TestShadowsDelayNothing: with one worker, a call is made while one of a shadow of the same plugin and pool is running, and no
// call of a shadow is waited for.
func TestShadowsDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		shadow, enforced := &sleeper{took: time.Hour}, &sleeper{took: time.Microsecond}
		for port := range 2 * maxCalls { // which fills its queue
			start := time.Now()
			if got := b.call(time.Second, call(shadow, "p/shadow", "a", "x", port)); len(got) != 0 || time.Since(start) != 0 {
				t.Fatalf("%d answers after %s", len(got), time.Since(start))
			}
		}
		synctest.Wait()
		if n := len(shadow.called()); n != 1 {
			t.Fatalf("%d calls of the shadow", n)
		}
		if got := b.call(time.Second, call(enforced, "p", "a", "x", 0)); len(got) != 1 || !b.queue("p").room("a") || b.queue("p/shadow").room("a") {
			t.Fatalf("%d answers", len(got))
		}
		shadow.set(0, nil)
	})
}

// TestShadowsUseOnlyCPUTimeThatIsLeft: the calls of other plugins are the same with and without shadows, also while both want
// more CPU time than there is.
func TestShadowsUseOnlyCPUTimeThatIsLeft(t *testing.T) {
	run := func(shadows bool, busy time.Duration) (calls int, shadowCPU time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t, 10, 1)
			b.Limit(10, []string{"p"})
			p, s := &sleeper{took: busy}, &sleeper{took: 20 * time.Millisecond}
			for range 1200 {
				for port := range 4 {
					b.call(0, call(p, "p", "a", "x", port))
					if shadows {
						b.call(0, call(s, "p/shadow", "a", "x", port), call(s, "q/shadow", "a", "x", port))
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
			calls, shadowCPU = len(p.called()), b.Stats()["p/shadow"].CPU+b.Stats()["q/shadow"].CPU
			if shadows && b.ThrottledSince("p/shadow").IsZero() {
				t.Error("shadows are not throttled")
			}
			p.set(0, nil)
			s.set(0, nil)
			b.Limit(0, nil) // the queues end with the bubble
		})
		return calls, shadowCPU
	}
	for busy, most := range map[time.Duration]time.Duration{20 * time.Millisecond: 400 * time.Millisecond, 0: 7 * time.Second} {
		without, _ := run(false, busy)
		with, cpu := run(true, busy)
		if with != without || with == 0 {
			t.Errorf("calls of %s: %d with shadows, %d without", busy, with, without)
		}
		if cpu > most || cpu < 300*time.Millisecond { // the burst, and with a plugin that leaves it, 5 % of 2 min
			t.Errorf("calls of %s: shadows used %s", busy, cpu)
		}
	}
}

func TestShadowsWithoutOtherPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 10, 1)
		s := &sleeper{took: 20 * time.Millisecond}
		for range 100 {
			b.call(0, call(s, "p/shadow", "a", "x", 1))
			time.Sleep(time.Second)
		}
		if n := len(s.called()); n < 90 {
			t.Errorf("%d calls in 100 s, of 2 s of CPU time", n)
		}
		s.set(0, nil)
	})
}
