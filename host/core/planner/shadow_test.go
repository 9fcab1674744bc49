package planner

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// wildPlugin gives random answers, which are a function of the request: weights, draining, resets, sheds, requeues and failures.
type wildPlugin struct {
	zonePlugin
	salt uint64
}

func (p wildPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	h := fnv.New64a()
	fmt.Fprint(h, req.Service, req.Port, req.Pool, req.Generation, req.Now, req.State)
	for i := range req.Endpoints {
		fmt.Fprint(h, req.Endpoints[i].Addr, req.Endpoints[i].PriorWeight)
	}
	r := rand.New(rand.NewPCG(h.Sum64(), p.salt))
	for i := range resp.Results {
		v := &resp.Results[i]
		v.Value, v.Flags, v.ShedPermille = r.Uint32N(5), uint32(r.IntN(2))*abi.FlagKeepDraining, uint16(r.IntN(2)*r.IntN(1000))
		if r.IntN(2) == 0 {
			v.ResetAfterMS = uint32(r.IntN(4000))
		}
		v.Reason = fmt.Sprint("reason ", r.IntN(3))
	}
	resp.State = append(resp.State, byte(r.IntN(256)))
	resp.Balance = uint8(r.IntN(3))
	resp.RequeueAfter = time.Duration(r.IntN(5)) * time.Second
	if r.IntN(5) == 0 {
		return errors.New("trap")
	}
	return nil
}

// effect returns everything in a result that is not about shadows.
func effect(res *Result, p *Planner, now time.Time) string {
	var out strings.Builder
	for _, c := range res.Delta.Changes {
		fmt.Fprintln(&out, c.Key, c.Old == nil, c.New == nil)
	}
	t := res.Totals
	t.Policies = slices.Clone(t.Policies)
	for i := range t.Policies {
		t.Policies[i].Shadow = tally.ShadowTotals{}
	}
	fmt.Fprintln(&out, plan.Format(p.Current()), sorted(res.Resets), sorted(res.StaleUDP), sorted(res.Errors), sorted(res.SettingsErrors), sorted(res.Holds),
		sorted(res.ShedsBounded), t)
	if sheds := p.Sheds(now); len(sheds) > 0 {
		fmt.Fprintln(&out, sheds)
		p.ShedsDone(now, true, nil)
	}
	return out.String()
}

// sorted returns the texts of a list: a Service that waits for an answer comes after others in the same Plan.
func sorted[T any](list []T) (out []string) {
	for _, x := range list {
		out = append(out, fmt.Sprint(x))
	}
	slices.Sort(out)
	return out
}

// TestShadowsHaveNoEffectOnPlans plans random changes with and without a shadow, each planner when it wants to be asked.
func TestShadowsHaveNoEffectOnPlans(t *testing.T) {
	moved, seeds := 0, uint64(60)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 11))
		plugins := func(name string) (policy.Plugin, error) {
			if name == "missing/shadow" {
				return nil, errors.New("not loaded")
			}
			salt := seed
			if strings.HasPrefix(name, "other") {
				salt++
			}
			return wildPlugin{salt: salt}, nil
		}
		planner := func(shadow ...policy.Step) *Planner {
			s := testSettings()
			s.Policies.Policies["zone"] = &policy.Policy{Name: "zone", Steps: []policy.Step{{Plugin: "wild"}}, Shadow: shadow,
				MaxShedPercentPerSecond: 1, Panic: policy.Panic{Below: int(seed%3) * 30, Hold: 3 * time.Second}, OnFailure: policy.OnFailure(seed % 2)}
			s.Policies.Default = "zone"
			p := New(s, plugins)
			if seed%4 == 1 {
				planInSteps(p)
				p.stepCost = 1 << 30 // what the shadow's calls take must not decide what the next Plan does
			}
			p.Apply([]model.Change{{Kind: model.Synced}})
			return p
		}
		chain := [][]policy.Step{{{Plugin: "wild/shadow"}}, {{Plugin: "other/shadow"}, {Plugin: "wild/shadow"}}, {{Plugin: "missing/shadow"}}}[r.IntN(3)]
		plain, shadowed := planner(), planner(chain...)
		now := time.Unix(1_000_000, 0)
		var wantAt, gotAt time.Time
		for i := range 150 {
			changed := i == 0 || r.IntN(4) == 0
			if changed {
				c := randomChange(r)
				plain.Apply([]model.Change{c})
				shadowed.Apply([]model.Change{c})
			}
			next := now.Add(time.Duration(r.IntN(1500)) * time.Millisecond)
			if !changed && !gotAt.IsZero() {
				next = gotAt
				if next.Before(now) {
					next = now
				}
			}
			now = next
			due := changed || !wantAt.IsZero() && !wantAt.After(now)
			got := shadowed.PlanNow(now)
			gotAt = got.RequeueAt
			for _, s := range got.Shadows {
				moved += oneIf(s.Divergence > 0)
			}
			if !due { // only the shadow
				if !got.Delta.Empty() || len(got.Resets)+len(got.Errors)+len(got.StaleUDP) > 0 {
					t.Fatalf("seed %d: the shadow has an effect: %+v", seed, got)
				}
				continue
			}
			want := plain.PlanNow(now)
			wantAt = want.RequeueAt
			if a, b := effect(&got, shadowed, now), effect(&want, plain, now); a != b {
				t.Fatalf("seed %d: with a shadow\n%s\nwithout\n%s", seed, a, b)
			}
			if !wantAt.IsZero() && (gotAt.IsZero() || gotAt.After(wantAt)) {
				t.Fatalf("seed %d: requeued at %v, without a shadow at %v", seed, gotAt, wantAt)
			}
		}
	}
	if moved == 0 {
		t.Error("no shadow has diverged: this tests nothing")
	}
}

// TestShadowSummary: Services are compared with what is in force, the mean is over them, and a Service that goes takes its part
// along.
func TestShadowSummary(t *testing.T) {
	settings := testSettings()
	settings.Policies.Policies["zone"].Shadow = []policy.Step{{Plugin: "even/shadow"}}
	settings.Policies.Default = "zone"
	even := &evenPlugin{}
	p := New(settings, func(name string) (policy.Plugin, error) {
		if name == "even/shadow" {
			return even, nil
		}
		return zonePlugin{}, nil
	})
	now := time.Unix(1000, 0)
	node := model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Zone: "z0"}}
	p.Apply([]model.Change{{Kind: model.Synced}, node, shadowedService("a"), shadowedSlice("a", "z0", "z1"), shadowedService("b"), shadowedSlice("b", "z1", "z1")})
	res := p.PlanNow(now)
	want := []tally.ServiceShadow{
		{Service: model.Name{Namespace: "shop", Name: "a"}, Policy: "zone", Divergence: 0.25, Compared: true}, // 3/4 and 1/4, or halves
		{Service: model.Name{Namespace: "shop", Name: "b"}, Policy: "zone", Compared: true},
	}
	if got := p.Shadows(); !reflect.DeepEqual(got, want) || len(res.Shadows) != 2 {
		t.Fatalf("%+v, reported %+v", got, res.Shadows)
	}
	if s := res.Totals.Policies[0].Shadow; s.Compared != 2 || math.Abs(s.Divergence()-0.125) > 1e-6 || s.Failing+s.Pending != 0 {
		t.Fatalf("%+v", s)
	}
	if x, err := p.Explain(want[0].Service); err != nil || x.Shadow != want[0] || x.Decisions[0].Cluster.Shadow.Steps[0].Reasons.At(1) != "even" {
		t.Fatalf("%+v, %v", x, err)
	}
	even.fails = true
	p.Apply([]model.Change{shadowedSlice("a", "z0", "z1", "z1")})
	res = p.PlanNow(now)
	if s := res.Totals.Policies[0].Shadow; s.Compared != 1 || s.Failing != 1 || res.Totals.Failing != 0 || len(res.Errors) != 0 || len(res.Totals.Fallbacks) != 0 {
		t.Fatalf("%+v, %+v", s, res.Totals)
	}
	if s := res.Shadows; len(s) != 1 || s[0].Compared || !s[0].Failing {
		t.Fatalf("%+v", s)
	}
	failed := func() (out []string) {
		p.Apply([]model.Change{shadowedSlice("a", "z0", "z1", "z1", fmt.Sprint("z", even.calls))})
		res = p.PlanNow(now)
		for _, err := range res.ShadowErrors {
			out = append(out, err.Service.String()+": "+err.Error())
		}
		return out
	}
	if len(res.ShadowErrors) != 1 || !strings.Contains(res.ShadowErrors[0].Error(), "policy zone: shadow: ") || len(failed()) != 0 {
		t.Fatalf("%v", res.ShadowErrors)
	}
	even.err = policy.ErrPending // asked again, it has not answered yet
	failed()
	if even.err = nil; len(failed()) != 0 {
		t.Fatalf("reported again: %v", res.ShadowErrors)
	}
	even.fails = false
	failed()
	even.fails = true
	if again := failed(); len(again) != 1 || !strings.HasPrefix(again[0], "shop/a: policy zone: shadow: ") {
		t.Fatalf("after it has worked: %q", again)
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: want[0].Service}, {Kind: model.ServiceKind, Name: want[1].Service}})
	res = p.PlanNow(now)
	if len(res.Shadows) != 2 || res.Shadows[0].Policy != "" || len(res.Totals.Policies) != 0 || len(p.Shadows()) != 0 {
		t.Fatalf("%+v, %+v", res.Shadows, res.Totals.Policies)
	}
}

// TestShadowsArePlannedLast: a Service that is due because of its policy is not behind 100 that are because of shadows.
func TestShadowsArePlannedLast(t *testing.T) {
	settings := testSettings()
	settings.Policies.Policies["zone"].Shadow = []policy.Step{{Plugin: "even/shadow"}}
	settings.Policies.Policies["due"] = &policy.Policy{Name: "due", Steps: []policy.Step{{Plugin: "often"}}}
	settings.Policies.Bindings = []policy.Binding{{Selector: policy.Selector{{Key: "due", Op: policy.Exists}}, Policy: "due"}}
	settings.Policies.Default = "zone"
	often, even := &evenPlugin{every: 2 * time.Second}, &evenPlugin{every: time.Second}
	p := New(settings, func(name string) (policy.Plugin, error) {
		switch name {
		case "often":
			return often, nil
		case "even/shadow":
			return even, nil
		}
		return zonePlugin{}, nil
	})
	planInSteps(p)
	changes := []model.Change{{Kind: model.Synced}}
	for i := range 100 {
		name := fmt.Sprintf("a%03d", i)
		changes = append(changes, shadowedService(name), shadowedSlice(name, "z0", "z1"))
	}
	z := shadowedService("z")
	z.Service.Labels = map[string]string{"due": ""}
	p.Apply(append(changes, z, shadowedSlice("z", "z0", "z1")))
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	p.stepCost = 500
	before := often.calls
	if res := p.PlanNow(now.Add(2 * time.Second)); res.Planned > 20 || res.Planned+res.Remaining != 101 || often.calls != before+1 {
		t.Fatalf("planned %d, %d remain, %d calls", res.Planned, res.Remaining, often.calls-before)
	}
}

// TestAnswersOfShadowsAreNotAwaited: the answer of a policy's plugin is planned although that of its shadow is missing.
func TestAnswersOfShadowsAreNotAwaited(t *testing.T) {
	settings := testSettings()
	settings.Policies.Policies["zone"].Shadow = []policy.Step{{Plugin: "even/shadow"}}
	settings.Policies.Default = "zone"
	p := New(settings, nativePlugins)
	var calls []*policy.Call
	now := time.Unix(1000, 0)
	planAll := func() Result {
		for {
			result := p.Plan(now)
			if len(result.Calls) == 0 {
				return result
			}
			calls = append(calls, result.Calls...)
		}
	}
	p.Apply([]model.Change{{Kind: model.Synced}, shadowedService("a"), shadowedSlice("a", "z0", "z1")})
	planAll()
	if len(calls) != 2 || calls[0].Shadow || !calls[1].Shadow || p.Awaited() != 1 {
		t.Fatalf("%d calls, %d awaited", len(calls), p.Awaited())
	}
	calls[0].Do()
	p.Deliver(calls[:1], now)
	if res := planAll(); res.Planned != 1 || p.Awaited() != 0 || res.Totals.Policies[0].Decisions[policy.FromChain] != 1 || res.Totals.Policies[0].Shadow.Pending != 1 {
		t.Fatalf("planned %d, %+v", res.Planned, res.Totals.Policies)
	}
	calls[1].Do()
	p.Deliver(calls[1:2], now)
	if res := planAll(); res.Planned != 1 || !res.Delta.Empty() || res.Totals.Policies[0].Shadow.Compared != 1 {
		t.Fatalf("planned %d, %+v", res.Planned, res.Totals.Policies)
	}
}

// evenPlugin gives all endpoints the same weight, and wants to be asked again.
type evenPlugin struct {
	zonePlugin
	every time.Duration
	fails bool
	err   error // with which it fails; nil: any
	calls int
}

func (p *evenPlugin) Decide(_ *abi.Request, resp *abi.Response) error {
	p.calls++
	if p.fails {
		return cmp.Or(p.err, errors.New("trap"))
	}
	for i := range resp.Results {
		resp.Results[i].Value, resp.Results[i].Reason = abi.One, "even"
	}
	resp.RequeueAfter = p.every
	return nil
}

func shadowedService(name string) model.Change {
	n := model.Name{Namespace: "shop", Name: name}
	return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{
		Name: n, ClusterIPs: []netip.Addr{serviceIP(name)}, Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
	}}
}

func serviceIP(name string) netip.Addr {
	h := fnv.New32a()
	fmt.Fprint(h, name)
	return netip.AddrFrom4([4]byte{10, 96, byte(h.Sum32() >> 8), byte(h.Sum32())})
}

func shadowedSlice(name string, zones ...string) model.Change {
	n := model.Name{Namespace: "shop", Name: name + "-1"}
	s := &model.EndpointSlice{Name: n, Service: model.Name{Namespace: "shop", Name: name}, Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}}
	ip := serviceIP(name).As4()
	for i, z := range zones {
		ip[0], ip[1] = 10, byte(100+i)
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4(ip), Node: "n0", Zone: z, Ready: true, Serving: true})
	}
	return model.Change{Kind: model.SliceKind, Name: n, Slice: s}
}

// TestShadowIsComparedWhileEndpointsAreHeld: both chains see the endpoint that the policy's panic holds.
func TestShadowIsComparedWhileEndpointsAreHeld(t *testing.T) {
	settings := testSettings()
	settings.Policies.Policies["zone"].Shadow = []policy.Step{{Plugin: "even/shadow"}}
	settings.Policies.Policies["zone"].Panic = policy.Panic{Below: 90, Hold: time.Minute}
	settings.Policies.Default = "zone"
	p := New(settings, func(name string) (policy.Plugin, error) {
		if name == "even/shadow" {
			return &evenPlugin{}, nil
		}
		return zonePlugin{}, nil
	})
	node := model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Zone: "z0"}}
	p.Apply([]model.Change{{Kind: model.Synced}, node, shadowedService("a"), shadowedSlice("a", "z0", "z1")})
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	lost := shadowedSlice("a", "z0", "z1")
	lost.Slice.Endpoints[1].Ready, lost.Slice.Endpoints[1].Serving = false, false
	p.Apply([]model.Change{lost})
	for _, c := range []struct {
		after      time.Duration
		held       int
		divergence float64
	}{{time.Second, 1, 0.25}, {2 * time.Minute, 0, 0}} {
		p.PlanNow(now.Add(c.after))
		x, err := p.Explain(model.Name{Namespace: "shop", Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if d := &x.Decisions[0].Cluster; d.Hold.Held != c.held || !d.Shadow.Compared || d.Shadow.Divergence != c.divergence {
			t.Errorf("after %s: %d held, shadow %+v, weights %v", c.after, d.Hold.Held, d.Shadow, d.Weights)
		}
	}
}
