package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// rig is an engine over a fake kernel, in a synctest bubble.
type rig struct {
	level      slog.Level // of the log
	t          *testing.T
	kernel     *fake.Kernel
	engine     *engine.Engine
	feed       chan []model.Change
	fail       chan error
	log        *testenv.Buffer
	stop       context.CancelFunc
	ended      chan error
	checkpoint *memoryCheckpoint
	clock      *nodeClock

	minSyncPeriod time.Duration
	pluginsReady  chan struct{}
	observer      engine.Observer
	selector      policy.Selector // what the plugin's policy is for; nil: everything
	plugins       engine.Plugins  // nil: the planner calls them
	signalsPeriod time.Duration
	connTable     engine.ConnTable // nil: kernel
}

// Run implements engine.Source.
func (r *rig) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.fail:
			return err
		case c := <-r.feed:
			emit(c)
		}
	}
}

func newRig(t *testing.T, k *fake.Kernel) *rig {
	return &rig{t: t, kernel: k, feed: make(chan []model.Change), fail: make(chan error), log: &testenv.Buffer{}, ended: make(chan error, 1), clock: newNodeClock()}
}

func start(t *testing.T, o fake.Options, plugin policy.Plugin) *rig {
	o.Now = time.Now
	k := fake.NewKernel(o)
	r := newRig(t, k)
	r.run(fake.Open(k), plugin, false)
	t.Cleanup(r.end)
	return r
}

func (r *rig) run(b backend.Backend, plugin policy.Plugin, once bool) {
	settings := planner.Settings{Node: "n0", MasqueradeMark: 0x4000, OutcomeNeeds: abi.NeedOutcomes | abi.NeedConnections}
	if plugin != nil {
		settings.Policies = &policy.Set{
			Policies: map[string]*policy.Policy{"p": {Name: "p", Steps: []policy.Step{{Plugin: "p"}}}},
			Bindings: []policy.Binding{{Selector: r.selector, Policy: "p"}},
		}
	}
	o := engine.Options{
		Source: r, Backend: b, ConnTable: r.kernel, Once: once, MinSyncPeriod: r.minSyncPeriod, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: r.level})), Observer: r.observer, Clock: r.clock.read,
		Planner: planner.New(settings, func(string) (policy.Plugin, error) { return plugin, nil }),
	}
	o.Plugins, o.SignalsPeriod = r.plugins, r.signalsPeriod
	if r.connTable != nil {
		o.ConnTable = r.connTable
	}
	if r.checkpoint != nil {
		o.Checkpoint = r.checkpoint
	}
	if r.pluginsReady != nil {
		o.PluginsReady = r.pluginsReady
	}
	r.engine = engine.New(o)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.engine.Run(ctx) }()
}

func (r *rig) end() {
	r.stop()
	<-r.ended
}

// emit sends changes and waits until the engine is idle.
func (r *rig) emit(changes ...model.Change) {
	r.feed <- changes
	synctest.Wait()
}

func (r *rig) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var (
	web    = model.Name{Namespace: "shop", Name: "web"}
	key    = plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}
	synced = model.Change{Kind: model.Synced}
)

func svc() model.Change {
	return model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{key.Addr}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}}
}

// eps returns a slice with endpoints by last address byte; a negative one is serving and terminating.
func eps(last ...int) model.Change {
	s := &model.EndpointSlice{Name: web, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for _, n := range last {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(max(n, -n))}), Ready: n > 0, Serving: true, Terminating: n < 0,
		})
	}
	return model.Change{Kind: model.SliceKind, Name: web, Slice: s}
}

// expect compares the programmed weights, by last address byte; an empty string means that there is no frontend.
func (r *rig) expect(what string, want string) {
	r.t.Helper()
	p, _ := r.kernel.Table(fake.Name)
	var got []string
	if f := p.Frontends[key]; f != nil {
		for _, m := range f.Pool.Endpoints {
			a := m.Addr.Addr().As4()
			got = append(got, fmt.Sprintf("%d:%d", a[3], m.Weight))
		}
		got = append(got, f.Pool.Verdict.String())
	}
	if g := strings.Join(got, " "); g != want {
		r.t.Fatalf("%s: the kernel has %q, want %q\n%s", what, g, want, r.log)
	}
}
