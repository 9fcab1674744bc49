package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is an error that a test sets while others run into it.
type fault struct{ err atomic.Pointer[error] }

func (f *fault) set(err error) { f.err.Store(&err) }
func (f *fault) get() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

// uneven is a plugin that prefers the first endpoint, until it fails.
type uneven struct{ fault }

func (u *uneven) Decide(_ *abi.Request, resp *abi.Response) error {
	if err := u.get(); err != nil {
		return err
	}
	for i := range resp.Answers {
		resp.Answers[i].Weight = 1
	}
	resp.Answers[0].Weight = 3
	return nil
}
func (*uneven) Needs() uint32    { return 0 }
func (*uneven) Revision() string { return "1" }

// table is a connection table with something to reset and to forget.
type table struct{ fault }

func (c *table) Reset(context.Context, []plan.Reset) (int, error) { return 2, c.get() }
func (c *table) DeleteStaleUDP(_ context.Context, stale []plan.Stale, _ []netip.Addr) (int, error) {
	time.Sleep(3 * time.Millisecond)
	return 5 * len(stale), c.get()
}

// pocket is a checkpoint that may be full.
type pocket struct{ fault }

func (p *pocket) Load() ([]byte, error) { return nil, errors.New("nothing") }
func (p *pocket) Store([]byte) error    { return p.get() }

// rig is an engine over a fake kernel with metrics, in a bubble of its own time.
type rig struct {
	*testing.T
	metrics *metrics.Metrics
	kernel  *fake.Kernel
	feed    chan []model.Change
	plugin  *uneven
	conns   *table
	pocket  *pocket
	plugins []metrics.PluginStats
	slow    time.Duration // that the backend takes
	fail    fault         // of the backend
	caps    plan.Caps
	mode    atomic.Pointer[string] // in force
	engine  *engine.Engine
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

// slow is a backend that takes its time.
type slow struct {
	backend.Backend
	r *rig
}

func (s slow) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	time.Sleep(s.r.slow)
	if err := s.r.fail.get(); err != nil {
		return backend.Report{}, fmt.Errorf("nftables: add frontend: %w", err)
	}
	return s.Backend.Apply(ctx, p, d)
}

func newRig(t *testing.T) *rig {
	return &rig{T: t, feed: make(chan []model.Change), plugin: &uneven{}, conns: &table{}, pocket: &pocket{}, slow: 5 * time.Millisecond, caps: fake.Everything()}
}

func (r *rig) start() {
	r.kernel = fake.NewKernel(fake.Options{Now: time.Now, Linger: time.Second, Caps: r.caps})
	mode := "nftables"
	r.mode.Store(&mode)
	r.metrics = metrics.New(metrics.Options{Mode: mode, CurrentMode: func() string { return *r.mode.Load() }, Version: "v0.1.0", Started: time.Now(),
		Plugins: func() []metrics.PluginStats { return r.plugins }})
	set := &policy.Set{
		Policies: map[string]*policy.Policy{
			"enforce": {Name: "enforce", Steps: []policy.Step{{Plugin: "uneven"}}},
			"watch":   {Name: "watch", Mode: policy.Observe, Steps: []policy.Step{{Plugin: "uneven"}}},
		},
	}
	for _, name := range []string{"enforce", "watch"} {
		set.Bindings = append(set.Bindings, policy.Binding{Policy: name,
			Selector: policy.Selector{{Key: "policy", Op: policy.In, Values: []string{name}}}})
	}
	e := engine.New(engine.Options{
		Source: r, Backend: slow{fake.Open(r.kernel), r}, ConnTable: r.conns, Checkpoint: r.pocket, Observer: r.metrics,
		Log: slog.New(slog.DiscardHandler),
		Planner: planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1, Policies: set},
			func(policy.Step) (policy.Plugin, error) { return r.plugin, nil }),
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

// settle lets the engine finish what is under way, without its retries.
func (r *rig) settle() {
	time.Sleep(15 * time.Millisecond)
	synctest.Wait()
}

func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// The types of metrics, as the registry spells them.
const counter, gauge, histogram = "COUNTER", "GAUGE", "HISTOGRAM"

// values gives the samples of all metrics by name and labels; histograms as _count and _sum.
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

// want checks values; -1 means that there is no such sample.
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

// endpoints of a Service, each on a node; "~" before it: terminating, still serving.
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

func policed(by string) func(*model.Service) {
	return func(s *model.Service) { s.Labels = map[string]string{"policy": by} }
}

var (
	synced = model.Change{Kind: model.Synced}
	never  time.Time
)

const v4, v6 = "{ip_family=IPv4}", "{ip_family=IPv6}"

func TestAScriptedSequenceOfSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		begin := time.Now()
		r.emit(service("a", 1, nil), endpoints("a", begin.Add(-time.Hour), "n1"), synced)
		r.settle()
		unix := func(at time.Time) float64 { return float64(at.UnixNano()) / 1e9 }
		r.want("the first sync compares everything; its triggers are older than the process", map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v4:                                     1,
			"kubeproxy_sync_proxy_rules_duration_seconds_sum" + v4:                                       0.005,
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v6:                                     0,
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4:                                1,
			"kubeproxy_sync_partial_proxy_rules_duration_seconds_count" + v4:                             0,
			"kubeproxy_network_programming_duration_seconds_count" + v4:                                  0,
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" + v4:                              unix(begin),
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" + v6:                              -1,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds" + v4:                                     unix(begin.Add(5 * time.Millisecond)),
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":                                          1,
			"kubeproxy_sync_proxy_rules_service_changes_total":                                           1,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                                        0,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v4:                               0,
			"sluice_sync_phase_duration_seconds_count{phase=plan}":                                       1,
			"sluice_sync_phase_duration_seconds_sum{phase=program}":                                      0.005,
			"sluice_backend_messages_total":                                                              float64(r.kernel.Stats().Messages),
			"sluice_services":                                                                            1,
			"sluice_frontends{ip_family=IPv4,kind=cluster_ip}":                                           1,
			"sluice_members{ip_family=IPv4,phase=active}":                                                1,
			"sluice_build_info{go_version=" + goVersion(t, r.metrics) + ",mode=nftables,version=v0.1.0}": 1,
		})

		// A change that was triggered 2 s ago; while it is programmed it is pending.
		r.pass(10 * time.Second)
		r.feed <- []model.Change{endpoints("a", time.Now().Add(-2*time.Second), "n1", "n2")}
		r.pass(time.Millisecond)
		r.want("under way", map[string]float64{
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending": 1,
			"kubeproxy_sync_proxy_rules_service_changes_pending":  0,
		})
		r.settle()
		r.want("one change", map[string]float64{
			"kubeproxy_sync_partial_proxy_rules_duration_seconds_count" + v4: 1,
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4:    1,
			"kubeproxy_network_programming_duration_seconds_count" + v4:      1,
			"kubeproxy_network_programming_duration_seconds_sum" + v4:        2.005,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":            0,
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":              2,
			"sluice_members{ip_family=IPv4,phase=active}":                    2,
		})

		// Linger is 1 s: the backend has asked for another Apply, which is no sync.
		r.pass(2 * time.Second)
		r.want("clean-up", map[string]float64{
			"sluice_sync_phase_duration_seconds_count{phase=cleanup}": 1,
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v4:  2,
		})

		// The kernel refuses: 20 ms, 40 ms, … until it does not.
		r.fail.set(syscall.ENOBUFS)
		r.emit(endpoints("a", time.Now(), "n1", "~n2"))
		r.settle()
		r.want("refused once", map[string]float64{
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v4: 1,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v6: 0,
			"sluice_failures_total{kind=program}":                          1,
			"sluice_backend_failures_total{errno=ENOBUFS}":                 1,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":          1,
			"kubeproxy_network_programming_duration_seconds_count" + v4:    1,
		})
		r.fail.set(nil)
		r.pass(100 * time.Millisecond)
		r.want("held at last", map[string]float64{
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":         0,
			"kubeproxy_network_programming_duration_seconds_count" + v4:   2,
			"kubeproxy_network_programming_duration_seconds_sum" + v4:     2.005 + 0.030, // 5 ms, 20 ms of back-off, 5 ms
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4: 2,
			"sluice_members{ip_family=IPv4,phase=active}":                 1,
			"sluice_members{ip_family=IPv4,phase=draining}":               1,
		})

		r.emit(model.Change{Kind: model.ServiceKind, Name: name("a")}, model.Change{Kind: model.SliceKind, Name: name("a")})
		r.settle()
		r.want("all gone", map[string]float64{
			"sluice_services": 0, "sluice_frontends{ip_family=IPv4,kind=cluster_ip}": 0,
			"sluice_members{ip_family=IPv4,phase=active}": 0, "sluice_members{ip_family=IPv4,phase=draining}": 0,
			"kubeproxy_sync_proxy_rules_service_changes_total": 2,
		})
	})
}

// goVersion is what the build info says, which is not the business of a test.
func goVersion(t testing.TB, m *metrics.Metrics) string {
	for k := range values(t, m) {
		if rest, ok := strings.CutPrefix(k, "sluice_build_info{go_version="); ok {
			return rest[:strings.Index(rest, ",")]
		}
	}
	return "none"
}

func TestPoliciesPluginsAndFallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugins = []metrics.PluginStats{{Plugin: "uneven", Calls: 7, Failures: 2, Fuel: 900, LogDropped: 3, MemoryBytes: 65536, Suspended: true}}
		r.start()
		r.emit(service("a", 1, policed("enforce")), endpoints("a", never, "n1", "n2"),
			service("b", 2, policed("watch")), endpoints("b", never, "n1", "n2", "n3", "n1"),
			service("c", 3, policed("watch")), endpoints("c", never, "n1"), synced)
		r.settle()
		r.want("all well", map[string]float64{
			"sluice_policy_decisions{from=policy,policy=enforce}":     1,
			"sluice_policy_decisions{from=observe,policy=watch}":      2,
			"sluice_policy_observed_endpoints{policy=watch}":          5,
			"sluice_policy_observed_difference_ratio{policy=watch}":   0.8, // all of b's four, not c's only one
			"sluice_policy_observed_difference_ratio{policy=enforce}": -1,
			"sluice_policy_failing_services":                          0,
			"sluice_plugin_fallbacks{plugin=uneven,to=last_good}":     -1,
			"sluice_plugin_calls_total{plugin=uneven}":                7,
			"sluice_plugin_failures_total{plugin=uneven}":             2,
			"sluice_plugin_fuel_total{plugin=uneven}":                 900,
			"sluice_plugin_log_lines_dropped_total{plugin=uneven}":    3,
			"sluice_plugin_memory_bytes{plugin=uneven}":               65536,
			"sluice_plugin_suspended{plugin=uneven}":                  1,
		})
		r.plugin.set(errors.New("no answer today"))
		r.emit(endpoints("a", never, "n1", "n2", "n3"), service("d", 4, policed("enforce")), endpoints("d", never, "n1"))
		r.settle()
		r.want("the plugin fails", map[string]float64{
			"sluice_policy_decisions{from=policy,policy=enforce}":    0,
			"sluice_policy_decisions{from=last_good,policy=enforce}": 1,
			"sluice_policy_decisions{from=default,policy=enforce}":   1,
			"sluice_plugin_fallbacks{plugin=uneven,to=last_good}":    1,
			"sluice_plugin_fallbacks{plugin=uneven,to=default}":      1,
			"sluice_policy_failing_services":                         2,
			"sluice_failures_total{kind=policy}":                     2,
		})
	})
}

func TestConflictsDegradationsAndMissingLocalEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.caps.Ratios, r.caps.MaxTotal = true, 2
		r.start()
		shared := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		r.emit(service("a", 1, func(s *model.Service) { s.ExternalIPs, s.Created = shared, 1; policed("enforce")(s) }), endpoints("a", never, "n1", "n2", "n1"),
			service("b", 2, func(s *model.Service) { s.ExternalIPs, s.Created, s.InternalLocal = shared, 2, true }), endpoints("b", never, "n1"),
			synced)
		r.settle()
		r.want("two want one address; three endpoints of weights 3, 1, 1 do not fit in 2", map[string]float64{
			"sluice_conflicting_frontends": 1,
			"sluice_degraded_frontends":    2,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=IPv4,traffic_policy=internal}": 1,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=IPv4,traffic_policy=external}": 0,
		})
		r.emit(model.Change{Kind: model.ServiceKind, Name: name("a")})
		r.settle()
		r.want("one of them is gone", map[string]float64{"sluice_conflicting_frontends": 0, "sluice_degraded_frontends": 0,
			"sluice_frontends{ip_family=IPv4,kind=external_ip}": 1})
	})
}

func TestConnectionsCheckpointAndSourceProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pocket.set(errors.New("disk full"))
		r.start()
		dns := func(s *model.Service) { s.Ports[0] = model.ServicePort{Protocol: model.UDP, Port: 53} }
		begin := time.Now()
		r.emit(service("dns", 1, dns), endpoints("dns", never, "n1", "n2"), synced)
		r.pass(1500 * time.Millisecond)
		r.want("the flows of a Service port that is new here are looked at; the checkpoint fails", map[string]float64{
			"kubeproxy_conntrack_reconciler_sync_duration_seconds_count" + v4: 1,
			"kubeproxy_conntrack_reconciler_sync_duration_seconds_sum" + v4:   0.003,
			"kubeproxy_conntrack_reconciler_deleted_entries_total" + v4:       5,
			"kubeproxy_conntrack_reconciler_deleted_entries_total" + v6:       0,
			"sluice_failures_total{kind=checkpoint}":                          1,
			"sluice_checkpoint_last_success_timestamp_seconds":                -1,
			"sluice_failures_total{kind=conntrack}":                           0,
			"sluice_source_problems{severity=error}":                          0,
		})
		r.pocket.set(nil)
		r.conns.set(errors.New("no conntrack"))
		r.metrics.SetSourceProblems(3, 1)
		r.emit(endpoints("dns", never, "n1"))
		r.pass(2 * time.Second)
		got := values(t, r.metrics)
		if at := got["sluice_checkpoint_last_success_timestamp_seconds"]; at < float64(begin.Unix())+2 || at > float64(begin.Unix())+4 {
			t.Errorf("checkpoint at %v, began at %d", at, begin.Unix())
		}
		if got["sluice_failures_total{kind=conntrack}"] < 1 {
			t.Error("the failure of conntrack is not counted")
		}
		r.want("as the source says", map[string]float64{
			"sluice_source_problems{severity=error}": 3, "sluice_source_problems{severity=warning}": 1,
		})
		r.metrics.OnEvent(engine.Event{Kind: engine.ConnectionsReset, Count: 4})
		r.metrics.OnEvent(engine.Event{Kind: engine.ConnectionsReset, Err: errors.New("no")})
		r.want("resets", map[string]float64{"sluice_connections_reset_total": 4, "sluice_failures_total{kind=reset}": 1})
		r.metrics.OnEvent(engine.Event{Kind: engine.DriftDetected, Count: 3})
		r.want("drift", map[string]float64{"sluice_foreign_changes_total": 3})
	})
}

// TestKubeProxysMetricsHaveTheirNamesLabelsAndBuckets is about what existing dashboards and alerts ask for: the 17
// metrics of kube-proxy's nftables mode.
func TestKubeProxysMetricsHaveTheirNamesLabelsAndBuckets(t *testing.T) {
	type shape struct {
		kind    string
		labels  string
		buckets int
	}
	want := map[string]shape{
		"sync_proxy_rules_duration_seconds":                {histogram, "ip_family", 15},
		"sync_full_proxy_rules_duration_seconds":           {histogram, "ip_family", 15},
		"sync_partial_proxy_rules_duration_seconds":        {histogram, "ip_family", 15},
		"sync_proxy_rules_last_timestamp_seconds":          {gauge, "ip_family", 0},
		"sync_proxy_rules_last_queued_timestamp_seconds":   {gauge, "ip_family", 0},
		"network_programming_duration_seconds":             {histogram, "ip_family", 2 + 59 + 12 + 7},
		"sync_proxy_rules_endpoint_changes_pending":        {gauge, "", 0},
		"sync_proxy_rules_endpoint_changes_total":          {counter, "", 0},
		"sync_proxy_rules_service_changes_pending":         {gauge, "", 0},
		"sync_proxy_rules_service_changes_total":           {counter, "", 0},
		"sync_proxy_rules_no_local_endpoints_total":        {gauge, "ip_family traffic_policy", 0},
		"proxy_healthz_total":                              {counter, "code", 0},
		"proxy_livez_total":                                {counter, "code", 0},
		"sync_proxy_rules_nftables_sync_failures_total":    {counter, "ip_family", 0},
		"sync_proxy_rules_nftables_cleanup_failures_total": {counter, "ip_family", 0},
		"conntrack_reconciler_sync_duration_seconds":       {histogram, "ip_family", 15},
		"conntrack_reconciler_deleted_entries_total":       {counter, "ip_family", 0},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.emit(service("a", 1, nil), endpoints("a", never, "n1"), synced)
		r.settle()
		r.metrics.CountHealthCheck("/healthz", 200)
		r.metrics.CountHealthCheck("/livez", 503)
		families, err := r.metrics.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range families {
			short, ours := strings.CutPrefix(f.GetName(), "kubeproxy_")
			if !ours {
				continue
			}
			seen++
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			got := shape{f.GetType().String(), strings.Join(labels, " "), len(f.Metric[0].GetHistogram().GetBucket())}
			if w, ok := want[short]; !ok || got != w {
				t.Errorf("%s: %+v, want %+v", f.GetName(), got, w)
			}
			if short == "network_programming_duration_seconds" {
				var bounds []float64
				for _, b := range f.Metric[0].Histogram.Bucket {
					bounds = append(bounds, b.GetUpperBound())
				}
				checkProgrammingBuckets(t, bounds)
			}
		}
		if seen != len(want) {
			t.Errorf("%d metrics, want %d", seen, len(want))
		}
		r.want("health", map[string]float64{"kubeproxy_proxy_healthz_total{code=200}": 1, "kubeproxy_proxy_livez_total{code=503}": 1})
	})
}

func checkProgrammingBuckets(t *testing.T, bounds []float64) {
	var want []float64
	want = append(want, 0.25, 0.5)
	for v := 1; v <= 59; v++ {
		want = append(want, float64(v))
	}
	for v := 60; v <= 115; v += 5 {
		want = append(want, float64(v))
	}
	for v := 120; v <= 300; v += 30 {
		want = append(want, float64(v))
	}
	if !slices.Equal(bounds, want) {
		t.Errorf("network programming buckets %v", bounds)
	}
}

// TestNamesFollowPrometheusConventions lists the names that kube-proxy has chosen against them.
func TestNamesFollowPrometheusConventions(t *testing.T) {
	fixed := map[string]string{
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total": `non-counter metrics should not have "_total" suffix`,
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugins = []metrics.PluginStats{{Plugin: "uneven"}}
		r.start()
		r.emit(service("a", 1, policed("watch")), endpoints("a", time.Now().Add(time.Millisecond), "n1"), synced)
		r.pass(3 * time.Second)
		r.metrics.CountHealthCheck("/healthz", 200)
		families, err := r.metrics.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		own := families[:0]
		for _, f := range families { // the others are the client library's
			if strings.HasPrefix(f.GetName(), "sluice_") || strings.HasPrefix(f.GetName(), "kubeproxy_") {
				own = append(own, f)
			}
		}
		problems, err := promlint.NewWithMetricFamilies(own).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if fixed[p.Metric] != p.Text {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
			delete(fixed, p.Metric)
		}
		if len(fixed) > 0 {
			t.Errorf("no longer a problem, take it off the list: %v", fixed)
		}
	})
}

func TestThePagesOfTheMetricsServer(t *testing.T) {
	m := metrics.New(metrics.Options{Mode: "nftables", Version: "v0.1.0", Started: time.Now()})
	pages := metrics.Pages{Mode: func() string { return "nftables" }, Log: slog.New(slog.DiscardHandler), Config: func() any { return map[string]string{"mode": "nftables"} }}
	get := func(h http.Handler, path string) (int, string, http.Header) {
		t.Helper()
		server := httptest.NewServer(h)
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b), resp.Header
	}
	for path, want := range map[string]struct{ kind, body string }{
		"/proxyMode": {"text/plain", "nftables"},
		"/healthz":   {"text/plain", "ok"},
		"/configz":   {"application/json", "{\n  \"mode\": \"nftables\"\n}\n"},
	} {
		code, body, header := get(m.Handler(pages), path)
		if code != 200 || body != want.body || !strings.HasPrefix(header.Get("Content-Type"), want.kind) {
			t.Errorf("%s: %d %q %s", path, code, body, header.Get("Content-Type"))
		}
	}
	code, body, _ := get(m.Handler(pages), "/metrics")
	for _, line := range []string{"\nsluice_build_info{", "\n# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram\n", "\ngo_goroutines ", "\nprocess_resident_memory_bytes "} {
		if code != 200 || !strings.Contains(body, line) {
			t.Errorf("/metrics: %d, without %q", code, line)
		}
	}
	if strings.Contains(body, "sluice_services") {
		t.Error("counts of a plan that there is none of yet")
	}
	if code, _, _ := get(m.Handler(pages), "/debug/pprof/"); code != 404 {
		t.Errorf("profiles although they are not enabled: %d", code)
	}
	pages.Profiling = true
	if code, body, _ := get(m.Handler(pages), "/debug/pprof/heap?debug=1"); code != 200 || !strings.Contains(body, "heap profile") {
		t.Errorf("profiles: %d", code)
	}
}

func TestAnotherModeHasNoMetricsOfNFTables(t *testing.T) {
	for n := range values(t, metrics.New(metrics.Options{Mode: "ipvs"})) {
		if strings.Contains(n, "nftables") {
			t.Errorf("%s", n)
		}
	}
}

// BenchmarkAChange is what a change of one of 10,000 Services costs in metrics.
func BenchmarkAChange(b *testing.B) {
	m := metrics.New(metrics.Options{Mode: "nftables", Started: time.Unix(0, 0)})
	p := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil)
	changes := []model.Change{synced}
	for i := range 10_000 {
		n := fmt.Sprint("s", i)
		c := service(n, 0, nil)
		c.Service.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		changes = append(changes, c, endpoints(n, never, "n1", "n2"))
	}
	p.Apply(changes)
	p.Plan(time.Unix(1, 0))
	flip := [][]model.Change{{endpoints("s7", never, "n1")}, {endpoints("s7", never, "n1", "n2")}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := flip[i%2]
		b.StopTimer()
		p.Apply(c)
		step := p.Plan(time.Unix(2, 0))
		b.StartTimer()
		m.OnEnqueue(c, time.Unix(2, 0))
		m.OnDequeue()
		m.OnPlan(&engine.PlannedStep{At: time.Unix(2, 0), Duration: time.Millisecond, Step: &step})
		m.OnApply(&engine.ApplyResult{At: time.Unix(3, 0), Attempted: true, Duration: time.Millisecond, Synced: true})
	}
}
