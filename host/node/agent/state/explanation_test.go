package state

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestWaitingForAPluginIsNoError: the pool says for which plugin, and since when by the wall clock.
func TestWaitingForAPluginIsNoError(t *testing.T) {
	wall := func(ms int64) time.Time { return time.UnixMilli(ms).Add(time.Hour) }
	explain := func(err error, pending *policy.Pending) *api.Explanation {
		return NewExplanation(&planner.Explanation{
			Service: &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}}, Err: err,
			Decisions: []policy.PortDecision{{Port: &eligibility.Port{UsesCluster: true}, Cluster: policy.Decision{Evaluation: policy.Evaluation{Err: err, Pending: pending}}}},
		}, wall)
	}
	late := fmt.Errorf("plugin p: %w", policy.ErrPending)
	x := explain(late, &policy.Pending{Plugin: "p", Since: 1000_000})
	if p := x.Pools[0].Pending; x.Error != "" || p == nil || p.Plugin != "p" || !p.Since.Equal(time.Unix(4600, 0)) || p.ThrottledSince != nil {
		t.Errorf("error %q, pending %+v", x.Error, p)
	}
	throttled := time.Unix(5000, 0)
	AddThrottled(x, func(plugin string) time.Time {
		if plugin == "p" {
			return throttled
		}
		return time.Time{}
	})
	if at := x.Pools[0].Pending.ThrottledSince; at == nil || !at.Equal(throttled) {
		t.Errorf("throttled since %v", at)
	}
	if x := explain(late, nil); x.Error == "" || x.Pools[0].Pending != nil {
		t.Errorf("while the plugin is being loaded: error %q, %+v", x.Error, x.Pools[0].Pending)
	}
	if x := explain(errors.New("trap"), &policy.Pending{}); x.Error != "trap" {
		t.Errorf("a failure while the next call waits: error %q", x.Error)
	}
}

// TestPartsThatCannotBeHeldAreNamed: a canary of 1 % with as many endpoints as the others, with and without room for the weights,
// and one without capacity.
func TestPartsThatCannotBeHeldAreNamed(t *testing.T) {
	for _, c := range []struct {
		weights []uint16
		want    []string
	}{
		{[]uint16{1, 1, 99, 99}, nil},
		{[]uint16{1, 1, 9, 9}, []string{"10.0.0.1:80 and 1 more: wanted 1 %, got 10 %", "10.0.0.3:80 and 1 more: wanted 99 %, got 90 %"}},
		{[]uint16{0, 0, 1, 1}, []string{"10.0.0.1:80 and 1 more: wanted 1 %, got 0 %"}}, // 100 % for 99 % is within what rounding may change
	} {
		port := &eligibility.Port{UsesCluster: true}
		for i := range c.weights {
			port.Endpoints = append(port.Endpoints, eligibility.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), 80), Ready: true})
		}
		step := policy.StepResult{Plugin: "canary", Role: abi.RoleShare, Answer: abi.Answer{Values: make([]uint32, 4), Group: []uint16{0, 0, 1, 1}, Groups: []uint32{10_000, 990_000}}}
		x := NewExplanation(&planner.Explanation{
			Service:   &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}},
			Decisions: []policy.PortDecision{{Port: port, Cluster: policy.Decision{Weights: c.weights, Evaluation: policy.Evaluation{Steps: []policy.StepResult{step}}}}},
		}, time.UnixMilli)
		if got := x.Pools[0].Unheld; !slices.Equal(got, c.want) {
			t.Errorf("%d: %q, want %q", c.weights, got, c.want)
		}
	}
}

// TestHoldsAndShedsAreExplained: of the endpoints, the first is ready and sheds connections, the second is held, the third fails.
func TestHoldsAndShedsAreExplained(t *testing.T) {
	wall := func(ms int64) time.Time { return time.UnixMilli(ms).Add(time.Hour) }
	eps := []eligibility.Endpoint{{Ready: true, InCluster: true}, {HeldCluster: true, InCluster: true}, {}}
	of := &policy.Policy{Name: "p", Panic: policy.Panic{Below: 50, Hold: time.Minute}, MaxShedPercentPerSecond: 1}
	x := NewExplanation(&planner.Explanation{
		Service: &model.Service{}, Policy: of, Ports: []planner.PortPolicy{{Policy: of}},
		Decisions: []policy.PortDecision{{Port: &eligibility.Port{UsesCluster: true, Endpoints: eps}, Cluster: policy.Decision{
			Weights: []uint16{1, 1, 0}, Sheds: []policy.Shed{{At: 1000_000, Permille: 800}, {}, {}},
			Hold: &policy.Hold{Ready: 1, Total: 3, Panicking: true, Held: 1, Until: []int64{0, 2000_000, 0}, Failing: []bool{false, false, true}, Counted: true},
		}}},
	}, wall)
	pool := x.Pools[0]
	if p := pool.Panic; p == nil || *p != (api.Panic{Panicking: true, Ready: 1, Total: 3, Held: 1, Below: 50, Hold: "1m0s", OutcomesCounted: true}) {
		t.Errorf("panic %+v", p)
	}
	first, held, failing := pool.Endpoints[0], pool.Endpoints[1], pool.Endpoints[2]
	if s := first.Shed; s == nil || s.Permille != 600 || s.Wanted != 800 || s.Since == nil || !s.Since.Equal(wall(1000_000)) || first.HeldUntil != nil {
		t.Errorf("the first endpoint: %+v, shed %+v", first, s)
	}
	if !held.Eligible || held.Default != 1 || held.HeldUntil == nil || !held.HeldUntil.Equal(wall(2000_000)) || held.Shed != nil {
		t.Errorf("the held endpoint: %+v", held)
	}
	if failing.Eligible || failing.HeldUntil != nil || failing.Why != "not ready, not held: connections from this node fail" {
		t.Errorf("the endpoint that fails: %+v", failing)
	}
}

// TestSourceRangesOfLocalhostNodePortsAreNamed: they do not apply, as to all NodePorts, and there the clients are the node's
// users.
func TestSourceRangesOfLocalhostNodePortsAreNamed(t *testing.T) {
	frontend := func(addr string, kind plan.Kind, p model.Protocol) *plan.Frontend {
		return &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr(addr), Port: 30080, Protocol: p}, Kind: kind}
	}
	e := &planner.Explanation{Service: &model.Service{}, Frontends: []*plan.Frontend{
		frontend("0.0.0.0", plan.NodePort, model.TCP), frontend("::", plan.NodePort, model.TCP),
		frontend("0.0.0.0", plan.NodePort, model.UDP), frontend("192.0.2.80", plan.LoadBalancer, model.TCP),
	}}
	for _, c := range []struct {
		ranges, addrs string
		want          []string
	}{
		{"", "127.0.0.1", nil},
		{"203.0.113.0/24", "", nil},
		{"203.0.113.0/24", "127.0.0.1", []string{"*4:30080/TCP at 127.0.0.1: wanted loadBalancerSourceRanges, got all users of this node: source ranges do not apply to NodePorts"}},
	} {
		e.Service.SourceRanges, e.LocalhostAddrs = nil, nil
		if c.ranges != "" {
			e.Service.SourceRanges = []netip.Prefix{netip.MustParsePrefix(c.ranges)}
		}
		if c.addrs != "" {
			e.LocalhostAddrs = []netip.Addr{netip.MustParseAddr(c.addrs)}
		}
		if got := NewExplanation(e, time.UnixMilli).Degraded; !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestGuardsAreExplained(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := &planner.Explanation{Service: &model.Service{}, Guards: []planner.GuardStatus{
		{Policy: "trial", State: policy.GuardState{Phase: policy.GuardFallenBack, Since: 1000, Baseline: policy.GuardCounts{Connections: 100}, Recent: policy.GuardCounts{Connections: 50, Failed: 20}}},
		{Policy: "next", Blind: true}, {Policy: "well", State: policy.GuardState{Phase: policy.GuardInForce}},
	}}
	x := NewExplanation(e, func(ms int64) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) })
	since := at.Add(time.Second)
	for i, want := range []api.Guard{
		{Policy: "trial", State: "fallen back", Since: &since, Baseline: api.GuardCounts{Connections: 100}, Recent: api.GuardCounts{Connections: 50, Failed: 20}},
		{Policy: "next", State: "baseline", Blind: true},
	} {
		got := x.Guards[i]
		if !strings.HasPrefix(got.Text, "policy "+want.Policy+" ") || want.Blind != strings.Contains(got.Text, "blind") {
			t.Errorf("text %q", got.Text)
		}
		if got.Text = ""; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if failing, degraded := x.Problems(); len(failing) != 0 || len(degraded) != 2 || !strings.HasPrefix(degraded[0], "guard: policy trial has fallen back: ") {
		t.Errorf("failing %q, degraded %q", failing, degraded)
	}
}

// TestShadowIsExplained: of two endpoints, the shadow prefers the second.
func TestShadowIsExplained(t *testing.T) {
	half, three := 0.5, 3.0
	of := &policy.Policy{Name: "p", Shadow: []policy.Step{{Plugin: policy.ShadowPlugin("q")}}}
	explain := func(s *policy.Shadow, all tally.ServiceShadow) (*api.Explanation, api.Pool) {
		x := NewExplanation(&planner.Explanation{
			Service: &model.Service{}, Policy: of, Shadow: all,
			Decisions: []policy.PortDecision{{Port: &eligibility.Port{UsesCluster: true, Endpoints: make([]eligibility.Endpoint, 2)},
				Cluster: policy.Decision{Weights: []uint16{1, 1}, Shadow: s}}},
		}, time.UnixMilli)
		return x, x.Pools[0]
	}
	step := policy.StepResult{Plugin: "q/shadow", Role: abi.RoleLocality, Answer: abi.Answer{Values: []uint32{0, 3 * abi.One}}, Reasons: policy.PackReasons(2, func(i int) string { return fmt.Sprint("r", i) })}
	x, pool := explain(&policy.Shadow{Weights: []uint16{0, 3}, Divergence: 0.5, Compared: true, Evaluation: policy.Evaluation{Steps: []policy.StepResult{step}}},
		tally.ServiceShadow{Policy: "p", Divergence: 0.5, Compared: true})
	if want := (&api.Shadow{Plugins: []string{"q"}, Divergence: &half}); !reflect.DeepEqual(x.Shadow, want) {
		t.Errorf("%+v", x.Shadow)
	}
	if want := (&api.EndpointShadow{Weight: 3, Share: 1, Steps: []api.Step{{Plugin: "q/shadow", Role: "locality", Share: &three, Reason: "r1"}}}); !reflect.DeepEqual(pool.Endpoints[1].Shadow, want) || *pool.Shadow.Divergence != 0.5 {
		t.Errorf("%+v, %+v", pool.Shadow, pool.Endpoints[1].Shadow)
	}
	x, pool = explain(&policy.Shadow{Evaluation: policy.Evaluation{Err: errors.New("trap"), Steps: []policy.StepResult{{Plugin: "q/shadow", Err: errors.New("trap")}}}},
		tally.ServiceShadow{Policy: "p", Failing: true})
	if s := x.Shadow; s.Divergence != nil || !s.Failing || pool.Shadow.Error != "trap" || pool.Shadow.Divergence != nil || pool.Endpoints[0].Shadow != nil || x.Error != "" {
		t.Errorf("%+v, %+v", s, pool.Shadow)
	}
	_, pool = explain(&policy.Shadow{Evaluation: policy.Evaluation{Err: policy.ErrPending, Pending: &policy.Pending{Plugin: "q/shadow", Since: 1000}}}, tally.ServiceShadow{Policy: "p", Pending: true})
	if s := pool.Shadow; s.Error != "" || s.Pending == nil || s.Pending.Plugin != "q/shadow" {
		t.Errorf("%+v", s)
	}
}

func TestIgnoredExternalIPsAreBounded(t *testing.T) {
	e := &planner.Explanation{Service: &model.Service{}}
	for i := range 300 {
		e.Ignored = append(e.Ignored, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	if x := NewExplanation(e, time.UnixMilli); len(x.Ignored) != maxUnrestricted+1 || x.Ignored[maxUnrestricted] != "280 more" {
		t.Errorf("%d: %v", len(x.Ignored), x.Ignored)
	}
}
