package planner_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/outcomes"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
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

func (failingSignals) OutcomesWindow(time.Time) (uint64, time.Duration) { return 1, time.Second }
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
					pl.Plan(c.now)
				}
				c.step()
			}
			c.observe(o)
			pl.Apply(c.changes())
			if result = pl.Plan(c.now); len(result.Errors) > 0 {
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
type widening struct{ rng *rand.Rand }

func (w *widening) Decide(req *abi.Request, resp *abi.Response) error {
	switch w.rng.IntN(8) {
	case 0:
		return errors.New("trap")
	case 1:
		return policy.ErrPending
	}
	for i := range req.Endpoints {
		resp.Results[i].Weight = uint16(w.rng.IntN(3))
	}
	resp.RequeueAfter = time.Duration(w.rng.IntN(5)) * time.Second
	return nil
}
func (*widening) Needs(string) uint32  { return 0 }
func (*widening) Keys(string) []string { return nil }
func (*widening) Revision() string     { return "1" }

// TestWeightsAreNeverWiderThanTheHold: whatever plugins answer and whenever they fail, only endpoints that are ready, serving while
// terminating, or held as the second implementation says, have weight.
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
		plugin := &widening{c.rng}
		pl := planner.New(settings, func(string) (policy.Plugin, error) { return plugin, nil })
		pl.UseSignals(failingSignals{failing: c.failing})
		for step := range 25 {
			c.step()
			c.observe(o)
			pl.Apply(c.changes())
			pl.Plan(c.now)
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

// holding is a planner whose policy holds for a minute, with four endpoints that are ready, two of them on this node.
type holding struct {
	*planner.Planner
	t    *testing.T
	c    *holdCluster
	last planner.Result
}

func newHolding(t *testing.T, svc func(*model.Service)) *holding {
	c := newHoldCluster(1)
	clear(c.eps)
	c.svc.InternalLocal, c.svc.ExternalLocal = false, true
	c.svc.HealthCheckNodePort = 32000
	if svc != nil {
		svc(c.svc)
	}
	for i := range byte(4) {
		a := netip.AddrFrom4([4]byte{10, 244, 0, 1 + i})
		c.eps[a] = model.SliceEndpoint{Addr: a, Node: []string{"n0", "n1"}[i%2], Ready: true, Serving: true, Pod: fmt.Sprint("pod-", i)}
	}
	h := &holding{planner.New(holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 50, Hold: time.Minute}}), nil), t, c, planner.Result{}}
	h.plan()
	return h
}

func (h *holding) plan() {
	h.Apply(h.c.changes())
	h.last = h.Plan(h.c.now)
}

// set sets which endpoints are ready, and plans.
func (h *holding) set(ready ...bool) {
	for i, r := range ready {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)})
		e := h.c.eps[a]
		e.Ready, e.Serving = r, r
		h.c.eps[a] = e
	}
	h.plan()
}

// expect compares the last bytes of the addresses that get connections, by flow.
func (h *holding) expect(what string, want ...[]byte) {
	h.t.Helper()
	for i, f := range holdFlows {
		var got []byte
		for _, e := range h.Current().Trace(f, h.NodeAddrs()).Candidates {
			got = append(got, e.Addr.Addr().As4()[3])
		}
		if w := want[min(i, len(want)-1)]; !slices.Equal(got, w) {
			h.t.Errorf("%s: %s → %s: endpoints %v, want %v", what, f.From, f.To, got, w)
		}
	}
}

func TestHoldBeginsBelowItsPercentageAndEndsInTime(t *testing.T) {
	h := newHolding(t, func(s *model.Service) { s.ExternalLocal = false })
	h.expect("all ready", []byte{1, 2, 3, 4})
	h.c.now = h.c.now.Add(time.Hour)
	h.set(true, true, false, false)
	h.expect("half of them ready is not below 50 percent", []byte{1, 2})
	lost := h.c.now
	h.c.now = lost.Add(20 * time.Second)
	h.set(true, false, false, false)
	h.expect("panic", []byte{1, 2, 3, 4})
	if c := h.last.Holds; len(c) != 1 || !c[0].Held || !c[0].Cluster || c[0].Service != h.c.svc.Name {
		t.Errorf("changes of holds %+v", c)
	}
	if want := lost.Truncate(time.Second).Add(time.Minute); !h.last.RequeueAt.Equal(want) {
		t.Fatalf("requeue at %s, want %s", h.last.RequeueAt, want)
	}
	h.c.now = h.last.RequeueAt.Add(-time.Millisecond)
	h.last = h.Plan(h.c.now)
	h.expect("until the first hold ends", []byte{1, 2, 3, 4})
	h.c.now = h.c.now.Add(time.Millisecond)
	h.last = h.Plan(h.c.now)
	h.expect("two holds have ended", []byte{1, 2})
	h.c.now = h.last.RequeueAt
	h.last = h.Plan(h.c.now)
	h.expect("all holds have ended", []byte{1})
	if c := h.last.Holds; len(c) != 1 || c[0].Held || !c[0].Cluster {
		t.Errorf("changes of holds %+v", c)
	}
	if !h.last.RequeueAt.IsZero() {
		t.Errorf("requeue at %s without a hold", h.last.RequeueAt)
	}
	h.set(true, true, true, true)
	h.c.now = h.c.now.Add(time.Minute)
	h.set(true, true, true, true)
	h.expect("ready again", []byte{1, 2, 3, 4})
}

func TestLocalPoolHasItsOwnHoldAndHealthCheckCountsReadyEndpoints(t *testing.T) {
	h := newHolding(t, nil)
	h.c.now = h.c.now.Add(time.Hour)
	h.set(false, true, false, true) // those of this node are no longer reported as ready
	h.expect("the local pool is held, the cluster pool is not", []byte{2, 4}, []byte{2, 4}, []byte{1, 3})
	if c := h.last.Holds; len(c) != 1 || c[0].Cluster {
		t.Errorf("changes of holds %+v", c)
	}
	if got := h.last.HealthChecks; len(got) != 1 || *got[0].Local.At(model.IPv4) != 0 {
		t.Errorf("the health check reports %+v, want no endpoint", got)
	}
	h.set(false, false, false, false)
	h.expect("both are held", []byte{1, 2, 3, 4}, []byte{1, 2, 3, 4}, []byte{1, 3})
	h.set(false, true, true, true)
	h.expect("half of the local endpoints are ready", []byte{2, 3, 4}, []byte{2, 3, 4}, []byte{3})
}

func TestLocalPoolHoldsNoEndpointsOfOtherNodes(t *testing.T) {
	h := newHolding(t, nil)
	h.Configure(holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 20, Hold: time.Minute}}))
	h.set(true, true, true, true)
	h.set(false, false, false, true)
	h.expect("one of four is ready, none of two here", []byte{4}, []byte{4}, []byte{1, 3})
	if held := h.last.Totals.Held; held != 2 {
		t.Errorf("%d endpoints are held, want the two on this node", held)
	}
}

func TestWithoutPanicNothingIsHeldAndNothingIsStored(t *testing.T) {
	h := newHolding(t, nil)
	h.Configure(holdSettings(&policy.Policy{Name: "hold"}))
	h.set(true, true, true, true)
	h.set(false, false, false, false)
	h.expect("no hold", []byte{})
	saved, err := h.Save(policy.Epoch{})
	if err != nil || bytes.Contains(saved, []byte("readiness")) {
		t.Errorf("%v, checkpoint %s", err, saved)
	}
}

func TestPanicCountsOutcomesAndEndsTheHoldOfAnEndpointThatFails(t *testing.T) {
	h := newHolding(t, func(s *model.Service) { s.ExternalLocal = false })
	settings := holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 50, Hold: time.Minute}})
	settings.OutcomeNeeds = abi.NeedOutcomes
	h.Configure(settings)
	failing := failingSignals{failing: map[netip.AddrPort]bool{}}
	h.UseSignals(failing)
	h.set(true, true, true, true)
	for _, f := range h.Current().Frontends {
		if !f.Outcomes {
			t.Errorf("outcomes of connections through %s are not counted", f.Key)
		}
	}
	h.set(true, false, false, false)
	h.expect("panic", []byte{1, 2, 3, 4})
	at := netip.MustParseAddrPort("10.244.0.3:8080")
	failing.failing[at] = true
	h.AddOutcomes(time.Unix(1000, 0), time.Second, []outcomes.Change{{Key: model.EndpointKey{Addr: at, Protocol: model.TCP}, Refused: 1, Failed: true}})
	h.last = h.Plan(h.c.now)
	h.expect("connections to one fail", []byte{1, 2, 4})
	delete(failing.failing, at)
	h.plan()
	h.expect("it is not tried again", []byte{1, 2, 4})
	h.set(true, false, true, false)
	h.set(true, false, false, false)
	h.expect("it was ready again", []byte{1, 2, 3, 4})
}
