package planner_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// heldOracle determines which endpoints a panic hold may keep, from everything that was observed so far. It is a second
// implementation that remembers nothing else.
type heldOracle struct {
	panic   policy.Panic
	history []observation // oldest first; the last one is the present
}

type observation struct {
	at        int64 // Unix milliseconds
	endpoints map[netip.AddrPort]oracleEndpoint
	failing   map[netip.AddrPort]bool
}

// held returns the held ones of the endpoints in a pool.
func (h *heldOracle) held(found map[netip.AddrPort]oracleEndpoint, in func(oracleEndpoint) bool) map[netip.AddrPort]bool {
	if h == nil {
		return nil
	}
	all, ready := 0, 0
	for _, e := range found {
		if in(e) && !e.Terminating {
			all++
			if e.Ready {
				ready++
			}
		}
	}
	out := map[netip.AddrPort]bool{}
	if float64(ready)/float64(all) >= float64(h.panic.Below)/100 {
		return out
	}
	for at, e := range found {
		if in(e) && !e.Ready && !e.Terminating && h.wasReady(e) {
			out[at] = true
		}
	}
	return out
}

// wasReady: the same Pod was ready less than the hold before now, has existed without terminating since, and connections to it
// have not failed since.
func (h *heldOracle) wasReady(e oracleEndpoint) bool {
	now := h.history[len(h.history)-1].at
	for i := len(h.history) - 1; i >= 0; i-- {
		then, exists := h.history[i].endpoints[e.addr]
		switch {
		case !exists || then.Terminating || then.Pod != e.Pod:
			return false
		case then.Ready:
			lost := h.history[i+1].at / 1000 * 1000 // whole seconds
			return now-lost < h.panic.Hold.Milliseconds()
		case h.history[i].failing[e.addr]:
			return false
		}
	}
	return false
}

// failingSignals are outcomes by which connections to some endpoints fail.
type failingSignals struct {
	policy.Signals
	failing map[netip.AddrPort]bool
}

func (f failingSignals) Outcomes(k model.EndpointKey) (o abi.Outcomes, failedAt uint64) {
	if o.Attempts = 2; f.failing[k.Addr] {
		o.Refused, o.Unanswered = 1, 1
	} else {
		o.Answered, o.Refused = 1, 1
	}
	return o, 0
}

// holdCluster is a Service whose endpoints change at random.
type holdCluster struct {
	rng     *rand.Rand
	now     time.Time
	svc     *model.Service
	eps     map[netip.Addr]model.SliceEndpoint
	failing map[netip.AddrPort]bool
	pods    int
}

var holdNode = &model.Node{Name: "n0", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")}}

func newHoldCluster(seed uint64) *holdCluster {
	c := &holdCluster{rng: rand.New(rand.NewPCG(seed, 0x401d)), now: time.UnixMilli(1_700_000_000_123), eps: map[netip.Addr]model.SliceEndpoint{}, failing: map[netip.AddrPort]bool{}}
	c.svc = &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		InternalLocal: c.rng.IntN(4) == 0, ExternalLocal: c.rng.IntN(3) > 0,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}},
	}
	for range 1 + c.rng.IntN(7) {
		c.mutate()
	}
	return c
}

// mutate changes one endpoint, or adds one.
func (c *holdCluster) mutate() {
	a := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + c.rng.IntN(7))})
	e, exists := c.eps[a]
	if !exists {
		c.pods++
		e = model.SliceEndpoint{Addr: a, Node: []string{"n0", "n1"}[a.As4()[3]%2], Zone: "a", Ready: true, Serving: true, Pod: fmt.Sprint("pod-", c.pods)}
		if c.rng.IntN(3) == 0 {
			e.Hints = &model.Hints{Zones: []string{"a"}}
		}
		c.eps[a] = e
		return
	}
	switch c.rng.IntN(9) {
	case 0:
		delete(c.eps, a)
		return
	case 1:
		e.Ready, e.Serving, e.Terminating = false, c.rng.IntN(2) == 0, true
	case 2: // another Pod gets the address
		c.pods++
		e.Pod, e.Terminating = fmt.Sprint("pod-", c.pods), false
	case 3: // publishNotReadyAddresses
		e.Ready, e.Serving, e.Terminating = true, true, true
	case 4:
		c.failing[netip.AddrPortFrom(a, 8080)] = !c.failing[netip.AddrPortFrom(a, 8080)]
	default:
		if e.Terminating {
			return
		}
		e.Ready = !e.Ready
		e.Serving = e.Ready
	}
	c.eps[a] = e
}

// step changes endpoints and lets time pass.
func (c *holdCluster) step() {
	for range c.rng.IntN(3) {
		c.mutate()
	}
	if c.rng.IntN(6) == 0 { // most endpoints are no longer reported as ready
		for a, e := range c.eps {
			if c.rng.IntN(4) > 0 && !e.Terminating {
				e.Ready, e.Serving = false, false
				c.eps[a] = e
			}
		}
	}
	c.now = c.now.Add(time.Duration(c.rng.IntN(4000)) * time.Millisecond)
}

func (c *holdCluster) slice() *model.EndpointSlice {
	s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: c.svc.Name, Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
	for _, a := range slices.SortedFunc(maps.Keys(c.eps), netip.Addr.Compare) {
		s.Endpoints = append(s.Endpoints, c.eps[a])
	}
	return s
}

func (c *holdCluster) changes() []model.Change {
	s := c.slice()
	return []model.Change{
		{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: holdNode},
		{Kind: model.ServiceKind, Name: c.svc.Name, Service: c.svc}, {Kind: model.SliceKind, Name: s.Name, Slice: s}, {Kind: model.Synced},
	}
}

func holdSettings(p *policy.Policy) planner.Settings {
	return planner.Settings{Node: "n0", MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Policies: &policy.Set{Policies: map[string]*policy.Policy{p.Name: p}, Default: p.Name}}
}

var holdFlows = []plan.Flow{
	{From: netip.MustParseAddr("10.244.9.9"), To: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: model.TCP},
	{From: netip.MustParseAddr("10.244.9.9"), To: netip.MustParseAddrPort("192.168.0.1:30080"), Protocol: model.TCP},
	{From: netip.MustParseAddr("198.51.100.9"), To: netip.MustParseAddrPort("192.168.0.1:30080"), Protocol: model.TCP},
}

// observe adds the present to the oracle's history.
func (c *holdCluster) observe(o *oracle) {
	o.services, o.slices = []*model.Service{c.svc}, []*model.EndpointSlice{c.slice()}
	o.held.history = append(o.held.history, observation{c.now.UnixMilli(), o.endpoints(c.svc, c.svc.Ports[0], model.IPv4), maps.Clone(c.failing)})
}

// TestHoldsMatchOracle compares the endpoints that get connections with those of a second implementation, over random sequences
// of changes and times, with restarts in between.
func TestHoldsMatchOracle(t *testing.T) {
	clusters := 1500
	if testing.Short() {
		clusters = 200
	}
	held, ended, cases := 0, 0, map[string]int{}
	for seed := range uint64(clusters) {
		c := newHoldCluster(seed)
		p := &policy.Policy{Name: "hold", Panic: policy.Panic{Below: []int{1, 34, 50, 51, 70, 100}[c.rng.IntN(6)], Hold: time.Duration(1+c.rng.IntN(20)) * time.Second}}
		settings := holdSettings(p)
		o := &oracle{node: holdNode, set: settings, held: &heldOracle{panic: p.Panic}}
		pl := planner.New(settings, nil)
		pl.UseSignals(failingSignals{failing: c.failing})
		var result planner.Result
		for step := range 25 {
			if at := result.RequeueAt; !at.IsZero() && c.rng.IntN(3) == 0 { // exactly when the planner wants to be called
				c.now = at
				if c.rng.IntN(2) == 0 {
					c.now = at.Add(-time.Millisecond)
				}
				ended++
			} else {
				if step > 0 && c.rng.IntN(6) == 0 {
					pl = restarted(t, pl, settings, failingSignals{failing: c.failing})
					pl.Apply(c.changes()) // what is ready now is known once it has been seen again
					pl.PlanNow(c.now)
				}
				c.step()
			}
			c.observe(o)
			pl.Apply(c.changes())
			if result = pl.PlanNow(c.now); len(result.Errors) > 0 {
				t.Fatal(result.Errors)
			}
			held += result.Totals.Held
			if (result.Totals.Held > 0) != (result.Totals.Holding == 1) {
				t.Fatalf("seed %d, step %d: %d endpoints of %d Services are held", seed, step, result.Totals.Held, result.Totals.Holding)
			}
			for _, f := range holdFlows {
				w, g := o.answer(f), pl.Current().Trace(f, pl.NodeAddrs())
				cases[w.case_]++
				if diff := w.diff(traced(g)); diff != "" {
					t.Fatalf("seed %d, step %d at %s: %s → %s: %s\n%+v\n%s", seed, step, c.now, f.From, f.To, diff, c.slice().Endpoints, plan.Format(pl.Current()))
				}
			}
		}
	}
	if held < clusters || ended < clusters/4 {
		t.Errorf("%d held endpoints and %d ends of holds were compared", held, ended)
	}
	t.Logf("%d held endpoints; flows by what became of them: %v", held, cases)
}

// restarted returns a planner that continues from the checkpoint of another one.
func restarted(t *testing.T, old *planner.Planner, s planner.Settings, signals policy.Signals) *planner.Planner {
	t.Helper()
	epoch := policy.Epoch{Boot: "b", At: 1}
	saved, err := old.Save(epoch)
	if err != nil {
		t.Fatal(err)
	}
	pl := planner.New(s, nil)
	pl.UseSignals(signals)
	if _, _, err := pl.Restore(saved, epoch); err != nil {
		t.Fatal(err)
	}
	return pl
}

// widening gives weight to every endpoint, whatever its conditions, fails at times, and does not answer at other times.
type widening struct {
	policytest.Plugin
	rng *rand.Rand
}

func (w *widening) Decide(req *abi.Request, resp *abi.Response) error {
	switch w.rng.IntN(8) {
	case 0:
		return errors.New("trap")
	case 1:
		return policy.ErrPending
	}
	for i := range req.Endpoints {
		resp.Results[i].Value = abi.One * uint32(w.rng.IntN(3))
	}
	resp.RequeueAfter = time.Duration(w.rng.IntN(5)) * time.Second
	return nil
}

// TestWeightsAreNeverWiderThanTheHold: whatever plugins answer and whenever they fail, only endpoints that are ready, serving
// while terminating, or held as the second implementation says, have weight.
func TestWeightsAreNeverWiderThanTheHold(t *testing.T) {
	clusters := 1500
	if testing.Short() {
		clusters = 200
	}
	weighed := map[string]int{}
	for seed := range uint64(clusters) {
		c := newHoldCluster(seed)
		p := &policy.Policy{Name: "hold", Steps: []policy.Step{{Plugin: "a"}, {Plugin: "b"}}[:1+c.rng.IntN(2)], OnFailure: policy.OnFailure(c.rng.IntN(2)),
			Panic: policy.Panic{Below: 60, Hold: time.Duration(1+c.rng.IntN(20)) * time.Second}}
		settings := holdSettings(p)
		o := &oracle{node: holdNode, set: settings, held: &heldOracle{panic: p.Panic}}
		plugin := &widening{rng: c.rng}
		pl := planner.New(settings, func(string) (policy.Plugin, error) { return plugin, nil })
		pl.UseSignals(failingSignals{failing: c.failing})
		for step := range 25 {
			c.step()
			c.observe(o)
			pl.Apply(c.changes())
			pl.PlanNow(c.now)
			found := o.endpoints(c.svc, c.svc.Ports[0], model.IPv4)
			heldCluster, heldLocal := o.held.held(found, func(oracleEndpoint) bool { return true }), o.held.held(found, o.here)
			for _, f := range pl.Current().Frontends {
				pools := map[*plan.Pool]map[netip.AddrPort]bool{&f.Pool: heldCluster, f.Outside: heldLocal}
				if f.Kind == plan.ClusterIP && c.svc.InternalLocal {
					pools[&f.Pool] = heldLocal
				}
				for pool, held := range pools {
					if pool == nil {
						continue
					}
					for _, e := range pool.Endpoints {
						got := found[e.Addr]
						switch {
						case e.Weight == 0:
						case got.Ready:
							weighed["ready"]++
						case got.Serving && got.Terminating:
							weighed["draining"]++
						case held[e.Addr]:
							weighed["held"]++
						default:
							t.Fatalf("seed %d, step %d: %s has weight %d: %+v\n%s", seed, step, e.Addr, e.Weight, got, plan.FormatFrontend(f))
						}
					}
				}
			}
		}
	}
	if weighed["ready"] < clusters || weighed["draining"] < clusters || weighed["held"] < clusters {
		t.Errorf("endpoints with weight by why: %v", weighed)
	}
}
