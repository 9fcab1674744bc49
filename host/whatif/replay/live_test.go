package replay_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/replay"
	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// native is a plugin in this process as a policy.Plugin.
type native struct{ *sdk.NativePlugin }

func (n native) Needs(string) uint32  { return n.NativePlugin.Needs() }
func (n native) Keys(string) []string { return n.NativePlugin.Keys() }
func (n native) Revision() string     { return n.NativePlugin.Revision() }

// bundled are plugins with settings that act within seconds.
var bundled = map[string]struct {
	create   func() sdk.Plugin
	settings string
}{
	"locality":     {locality.New, `{"minEndpointsPerZone": 1}`},
	"warm":         {lifecycle.New, `{"warm": {"duration": "10s", "steps": 4}}`},
	"drain":        {lifecycle.New, `{"drain": {"stages": [{"percent": 100, "duration": "3s"}, {"percent": 30, "duration": "3s"}]}}`},
	"outlier":      {outlier.New, `{"window": "4s", "baseEjectionTime": "6s", "maxEjectionPercent": 60}`},
	"least-loaded": {leastloaded.New, `{"interval": "3s"}`},
}

func newPlugins() func(string) (policy.Plugin, error) {
	loaded := map[string]policy.Plugin{}
	return func(name string) (policy.Plugin, error) {
		if p := loaded[name]; p != nil {
			return p, nil
		}
		p, err := sdk.NewNativePlugin(bundled[name].create, []byte(bundled[name].settings))
		if err != nil {
			return nil, err
		}
		loaded[name] = native{p}
		return loaded[name], nil
	}
}

// settingsOf returns the settings of a node on which every Service has the chain of plugins; none: no policy.
func settingsOf(base planner.Settings, chain ...string) planner.Settings {
	base.OutcomeNeeds = abi.NeedOutcomes | abi.NeedConnections
	if len(chain) > 0 {
		p := &policy.Policy{Name: "p"}
		for _, name := range chain {
			p.Steps = append(p.Steps, policy.Step{Plugin: name})
		}
		base.Policies = &policy.Set{Policies: map[string]*policy.Policy{"p": p}, Default: "p"}
	}
	return base
}

// tape records in the engine's loop.
type tape struct {
	engine.Observers
	encoder *recording.Encoder
	out     bytes.Buffer
	pending []model.Change
	err     error
	planner *planner.Planner

	mu    sync.Mutex
	times []time.Time
	plans map[time.Time]string // at the end of each instant
}

func (t *tape) OnChanges(at time.Time, changes []model.Change) {
	if t.err != nil {
		return
	}
	if t.encoder != nil {
		t.err = t.encoder.Changes(at, changes)
		return
	}
	if t.pending = append(t.pending, changes...); at.IsZero() {
		return
	}
	s := model.NewSnapshot()
	for _, c := range t.pending {
		s.Apply(c)
	}
	t.encoder, t.err = recording.NewEncoder(&t.out, recording.Header{Version: "v1", Node: "n0", Mode: "nftables", Started: at.UTC()}, at, s, recording.Keep{}, 0)
}

func (t *tape) OnOutcomes(r engine.OutcomeReading) {
	if t.err != nil {
		return
	}
	kinds := []recording.ReadingKind{recording.Read, recording.Begun, recording.Stopped, recording.Rebased}
	out := recording.Reading{Kind: kinds[r.Stage], Interval: r.Interval, Counters: map[model.EndpointKey]outcomes.Counters{}}
	for k, c := range r.Counters {
		out.Counters[k] = outcomes.Counters(c)
	}
	t.err = t.encoder.Reading(r.At, &out)
}

func (t *tape) OnConnections(at time.Time, count map[model.EndpointKey]uint32) {
	if t.err == nil {
		t.err = t.encoder.Open(at, count)
	}
}

// OnPlan implements engine.Observer.
func (t *tape) OnPlan(*engine.PlannedStep) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if n := len(t.times); n == 0 || !t.times[n-1].Equal(now) {
		t.times = append(t.times, now)
	}
	t.plans[now] = plan.Format(t.planner.Current())
}

// feed is a source of changes.
type feed chan []model.Change

// Run implements engine.Source.
func (f feed) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-f:
			emit(c)
		}
	}
}

// live runs an engine through a random history and records it.
func live(t *testing.T, seed uint64, settings planner.Settings, cluster *testgen.Cluster) (text []byte, times []time.Time, plans map[time.Time]string) {
	random := rand.New(rand.NewPCG(seed, 7))
	kernel := fake.NewKernel(fake.Options{Now: time.Now, Seed: seed})
	pl := planner.New(settings, newPlugins())
	tp := &tape{plans: map[time.Time]string{}, planner: pl}
	source := make(feed)
	e := engine.New(engine.Options{
		Source: source, Backend: fake.Open(kernel), ConnTable: kernel, Planner: pl, Log: slog.New(slog.DiscardHandler), Observer: tp, Recorder: tp,
		SignalsPeriod: 1001700 * time.Microsecond, // so that no requeue is due at the time of a reading: it might come before it or after it
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	source <- cluster.Changes
	synctest.Wait()
	for range 150 {
		time.Sleep(time.Duration(random.IntN(1500))*time.Millisecond + time.Duration(1+random.IntN(900))*time.Microsecond)
		source <- randomChanges(random, cluster)
		synctest.Wait()
		for range random.IntN(12) {
			f := cluster.Flow()
			kernel.Connect(fake.Packet{From: netip.AddrPortFrom(f.From, uint16(1024+random.IntN(60000))), Interface: f.Interface, To: f.To, Protocol: f.Protocol})
		}
		if random.IntN(4) == 0 {
			for key, f := range pl.Current().Frontends {
				for ep := range f.AllEndpoints() {
					kernel.SetResponse(model.EndpointKey{Addr: ep.Addr, Protocol: key.Protocol}, fake.Response(ep.Addr.Addr().As16()[15]%3))
				}
			}
		}
	}
	time.Sleep(30 * time.Second)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if tp.err == nil {
		tp.err = tp.encoder.Close(time.Now())
	}
	if tp.err != nil {
		t.Fatal(tp.err)
	}
	return tp.out.Bytes(), tp.times, tp.plans
}

// randomRoute creates, changes or deletes a route between Services of a cluster.
func randomRoute(r *rand.Rand, c *testgen.Cluster) model.Change {
	name := model.ObjectName{Kind: model.TCPRouteKind, Name: model.Name{Namespace: "shop", Name: fmt.Sprint("r", r.IntN(2))}}
	out := model.Change{Kind: model.RouteKind, Group: name.Kind, Name: name.Name}
	if r.IntN(4) == 0 {
		return out
	}
	out.Route = &model.Route{Name: name}
	for _, change := range c.Changes {
		if svc := change.Service; svc != nil && len(svc.Ports) > 0 {
			if r.IntN(3) == 0 {
				out.Route.Parents = append(out.Route.Parents, model.RouteParent{Service: svc.Name.Name})
			}
			if r.IntN(2) == 0 {
				out.Route.Backends = append(out.Route.Backends, model.RouteBackend{Service: svc.Name.Name, Port: svc.Ports[0].Port, Weight: uint32(r.IntN(4))})
			}
		}
	}
	return out
}

// randomChanges changes some slices, and rarely a Service, a Node or a route.
func randomChanges(r *rand.Rand, c *testgen.Cluster) (out []model.Change) {
	if r.IntN(5) == 0 {
		out = append(out, randomRoute(r, c))
	}
	for range 1 + r.IntN(3) {
		change := c.Changes[r.IntN(len(c.Changes))]
		switch {
		case change.Slice != nil:
			own := *change.Slice
			own.Endpoints = slices.Clone(own.Endpoints)
			for i := range own.Endpoints {
				e := &own.Endpoints[i]
				switch r.IntN(6) {
				case 0:
					e.Ready, e.Serving, e.Terminating = true, true, false
				case 1:
					e.Ready, e.Serving, e.Terminating = false, true, true
				case 2:
					e.Ready, e.Serving, e.Terminating = false, false, r.IntN(2) == 0
				}
			}
			if n := len(own.Endpoints); n > 1 && r.IntN(3) == 0 {
				own.Endpoints = slices.Delete(own.Endpoints, n/2, n/2+1)
			}
			change.Slice = &own
			if r.IntN(12) == 0 {
				change.Slice = nil
			}
		case change.Service != nil && r.IntN(4) == 0:
			change.Service = nil
		case change.Node != nil && r.IntN(3) == 0:
			own := *change.Node
			own.Zone = []string{"a", "b", ""}[r.IntN(3)]
			change.Node = &own
		}
		out = append(out, change)
	}
	return out
}

// TestReplayDecidesAsTheEngineDid records random histories of an engine, with outcomes, open connections, drains and requeues,
// and compares the plans of a replay with the engine's at each time.
func TestReplayDecidesAsTheEngineDid(t *testing.T) {
	chains := [][]string{{"locality"}, {"warm"}, {"drain"}, {"outlier"}, {"least-loaded"}, {"outlier", "locality"}, {}}
	readings := 0
	for seed := range uint64(14) {
		chain := chains[seed%uint64(len(chains))]
		t.Run(fmt.Sprint(seed, chain), func(t *testing.T) {
			cluster := testgen.NewCluster(seed, testgen.ClusterOptions{})
			settings := settingsOf(cluster.Settings, chain...)
			var text []byte
			var times []time.Time
			var plans map[time.Time]string
			synctest.Test(t, func(t *testing.T) { text, times, plans = live(t, seed, settings, cluster) })

			got := map[int64]string{}
			var at []int64
			replayed := func(first bool) replay.Config {
				return replay.Config{Settings: settings, Plugins: newPlugins(), OnPlan: func(now time.Time, p *planner.Planner) {
					if !first {
						return
					}
					if n := len(at); n == 0 || at[n-1] != now.UnixNano() {
						at = append(at, now.UnixNano())
					}
					got[now.UnixNano()] = plan.Format(p.Current())
				}}
			}
			reader, err := recording.NewReader(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			result, err := replay.Replay(reader, []replay.Config{replayed(true), replayed(false)}, replay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, now := range times {
				i, found := slices.BinarySearch(at, now.UnixNano())
				if !found {
					i--
				}
				if i < 0 {
					t.Fatalf("at %s nothing had been replayed", now)
				}
				if want := plans[now]; got[at[i]] != want {
					t.Fatalf("at %s the replay has\n%s\nthe engine had\n%s", now, got[at[i]], want)
				}
			}
			if c := result.Comparison; c.Differing != 0 || c.MaxDivergence != 0 {
				t.Errorf("a configuration differs from itself: %+v", c)
			}
			if result.Truncated || result.Dropped > 0 || result.Changes == 0 {
				t.Errorf("%+v", result)
			}
			readings += result.Readings
		})
	}
	if readings == 0 {
		t.Error("no history has outcomes")
	}
}
