package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// fault is an error that a test sets while other goroutines read it.
type fault struct{ err atomic.Pointer[error] }

func (f *fault) set(err error) { f.err.Store(&err) }
func (f *fault) get() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

// uneven is a plugin that prefers the first endpoint unless its fault is set.
type uneven struct {
	policytest.Plugin
	fault
}

func (u *uneven) Decide(_ *abi.Request, resp *abi.Response) error {
	if err := u.get(); err != nil {
		return err
	}
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	resp.Results[0].Value = 3 * abi.One
	return nil
}

// connTable is a connection table that always has connections to reset and flows to delete.
type connTable struct{ fault }

func (c *connTable) Reset(context.Context, []plan.Reset, backend.Resetter) (plan.ResetCount, error) {
	return plan.ResetCount{Connections: 2, Uncertain: 1}, c.get()
}
func (c *connTable) DeleteStaleUDP(_ context.Context, _ model.Family, frontends []plan.Key, _ func(_, _ netip.AddrPort) bool) (int, error) {
	time.Sleep(3 * time.Millisecond)
	return 5 * len(frontends), c.get()
}

func (c *connTable) DeleteUnreplied(_ context.Context, to []plan.Reset) (int, error) {
	return len(to), c.get()
}

// checkpoint is an empty checkpoint whose Store can fail.
type checkpoint struct{ fault }

func (p *checkpoint) Load() ([]byte, error) { return nil, errors.New("empty") }
func (p *checkpoint) Store([]byte) error    { return p.get() }

// rig is an engine with metrics on a fake kernel, in a synctest bubble.
type rig struct {
	*testing.T
	metrics       *metrics.Metrics
	kernel        *fake.Kernel
	feed          chan []model.Change
	plugin        *uneven
	conns         *connTable
	checkpoint    *checkpoint
	plugins       []metrics.PluginStats
	configuration metrics.Configuration
	applyTime     time.Duration // of the backend
	fail          fault         // of the backend
	caps          plan.Caps
	mode          atomic.Pointer[metrics.Mode] // the current mode
	engine        *engine.Engine
}

// Run implements engine.Source.
func (r *rig) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-r.feed:
			emit(c)
		}
	}
}

// slowBackend is a backend whose Apply takes rig.applyTime and can fail.
type slowBackend struct {
	backend.Backend
	r *rig
}

func (s slowBackend) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	time.Sleep(s.r.applyTime)
	if err := s.r.fail.get(); err != nil {
		return backend.Report{}, fmt.Errorf("nftables: add frontend: %w", err)
	}
	return s.Backend.Apply(ctx, p, d)
}

func newRig(t *testing.T) *rig {
	return &rig{T: t, feed: make(chan []model.Change), plugin: &uneven{}, conns: &connTable{}, checkpoint: &checkpoint{}, applyTime: 5 * time.Millisecond, caps: fake.Everything()}
}

func (r *rig) start() {
	r.kernel = fake.NewKernel(fake.Options{Now: time.Now, Linger: time.Second, Caps: r.caps})
	mode := metrics.Mode{Name: "nftables", NFTables: true}
	r.mode.Store(&mode)
	r.metrics = metrics.New(metrics.Options{Mode: mode, CurrentMode: func() metrics.Mode { return *r.mode.Load() }, Version: "v0.1.0", Started: time.Now(),
		Configuration: func() metrics.Configuration { return r.configuration }, Plugins: func() []metrics.PluginStats { return r.plugins }})
	set := &policy.Set{
		Policies: map[string]*policy.Policy{
			"enforce": {Name: "enforce", Steps: []policy.Step{{Plugin: "uneven"}}},
			"watch":   {Name: "watch", Shadow: []policy.Step{{Plugin: "uneven/shadow"}}},
		},
	}
	for _, name := range []string{"enforce", "watch"} {
		set.Bindings = append(set.Bindings, policy.Binding{Policy: name,
			Selector: policy.Selector{{Key: "policy", Op: policy.In, Values: []string{name}}}})
	}
	e := engine.New(engine.Options{
		Source: r, Backend: slowBackend{fake.Open(r.kernel), r}, ConnTable: r.conns, Checkpoint: r.checkpoint, Observer: r.metrics,
		Log: slog.New(slog.DiscardHandler),
		Planner: planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1, Policies: set},
			func(string) (policy.Plugin, error) { return r.plugin, nil }),
	})
	r.engine = e
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	r.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
}

func (r *rig) emit(changes ...model.Change) {
	r.feed <- changes
	synctest.Wait()
}

// settle lets the engine finish the current step, but not its retries.
func (r *rig) settle() {
	time.Sleep(15 * time.Millisecond)
	synctest.Wait()
}

func (r *rig) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Names of the metric types in the registry.
const counter, gauge, histogram = "COUNTER", "GAUGE", "HISTOGRAM"

// values returns the samples of all metrics by name and labels, and histograms as _count and _sum.
func values(t testing.TB, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, s := range f.Metric {
			var labels []string
			for _, l := range s.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			at := func(suffix string) string {
				if len(labels) == 0 {
					return f.GetName() + suffix
				}
				return f.GetName() + suffix + "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType().String() {
			case counter:
				out[at("")] = s.Counter.GetValue()
			case gauge:
				out[at("")] = s.Gauge.GetValue()
			case histogram:
				out[at("_count")], out[at("_sum")] = float64(s.Histogram.GetSampleCount()), s.Histogram.GetSampleSum()
			}
		}
	}
	return out
}

// want compares samples; -1 means that the sample does not exist.
func (r *rig) want(what string, want map[string]float64) {
	r.Helper()
	got := values(r, r.metrics)
	for name, w := range want {
		g, ok := got[name]
		if !ok {
			g = -1
		}
		if math.Abs(g-w) > 1e-6*max(1, math.Abs(w)) {
			r.Errorf("%s: %s is %v, want %v", what, name, g, w)
		}
	}
}

func name(s string) model.Name { return model.Name{Namespace: "shop", Name: s} }

func service(s string, last byte, change func(*model.Service)) model.Change {
	svc := &model.Service{Name: name(s), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
	if change != nil {
		change(svc)
	}
	return model.Change{Kind: model.ServiceKind, Name: svc.Name, Service: svc}
}

// endpoints returns a slice with one endpoint per node; "~" before a node means terminating and serving.
func endpoints(s string, trigger time.Time, nodes ...string) model.Change {
	e := &model.EndpointSlice{Name: name(s), Service: name(s), Family: model.IPv4,
		Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}, {Protocol: model.UDP, Port: 53}}}
	if !trigger.IsZero() {
		e.Trigger = trigger.UnixMilli()
	}
	for i, n := range nodes {
		n, leaving := strings.CutPrefix(n, "~")
		e.Endpoints = append(e.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Node: n,
			Ready: !leaving, Serving: true, Terminating: leaving})
	}
	return model.Change{Kind: model.SliceKind, Name: e.Name, Slice: e}
}

func withPolicy(by string) func(*model.Service) {
	return func(s *model.Service) { s.Labels = map[string]string{"policy": by} }
}

var (
	synced = model.Change{Kind: model.Synced}
	never  time.Time
)

const v4, v6 = "{ip_family=IPv4}", "{ip_family=IPv6}"

// goVersion returns the label of sluice_build_info.
func goVersion(t testing.TB, m *metrics.Metrics) string {
	for k := range values(t, m) {
		if rest, ok := strings.CutPrefix(k, "sluice_build_info{go_version="); ok {
			return rest[:strings.Index(rest, ",")]
		}
	}
	return "none"
}
