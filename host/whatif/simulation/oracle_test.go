package simulation

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// TestClassesEqualOnePlannerForEachNode compares simulations of random clusters, policies and timelines with a whole planner for
// each node.
func TestClassesEqualOnePlannerForEachNode(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 12
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { compareWithPlanners(t, uint64(seed)) })
	}
}

func compareWithPlanners(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	cluster, generated := randomCluster(seed)
	if seed%4 < 2 {
		addRoutes(rand.New(rand.NewPCG(seed, 3)), cluster)
	}
	names := byInput
	if seed%2 == 1 {
		names = slices.Sorted(maps.Keys(bundled))
	}
	settings := generated.Settings
	settings.Policies = randomPolicies(random, names)
	timeline, err := scenario.Parse("random", []byte(randomTimeline(random, cluster)))
	if err != nil {
		t.Fatal(err)
	}
	in := Input{
		Cluster: cluster, Runs: []Config{{Settings: settings}}, Demand: NodesDemand(3), Timeline: timeline, Seed: int64(seed),
		Step: 2 * time.Second,
	}
	if random.IntN(2) == 0 {
		in.Demand = CPUDemand(3)
	}
	s, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	if s.maxExact = 0; seed%2 == 0 {
		s.witnesses = minWitnesses // which do not find what classes must not depend on
	}
	got := s.Run([][]Plugins{{newPlugins()}}, nil)
	compareRun(t, s, got, settings)
	if t.Failed() {
		for _, b := range settings.Policies.Bindings {
			t.Logf("binding %+v: %+v", b, settings.Policies.Policies[b.Policy])
		}
		for _, e := range got.Events {
			t.Logf("%gs %s", e.Seconds, e.Text)
		}
	}
}

// randomTimeline returns statements about Services with endpoints.
func randomTimeline(random *rand.Rand, c *model.Snapshot) string {
	var services []string
	for _, name := range slices.SortedFunc(maps.Keys(c.Slices), model.Name.Compare) {
		if c.Services[name] != nil && len(c.Slices[name][0].Endpoints) > 0 {
			services = append(services, name.String())
		}
	}
	var b strings.Builder
	for range random.IntN(6) {
		fmt.Fprintf(&b, "after %ds\n", random.IntN(8))
		verb := []string{
			"node 20% lost detect=2s evict=5s startup=2s", "node 20% back", "zone a lost detect=3s evict=20s", "drain % pods=50% grace=7s", "drain % grace=4s startup=2s",
			"scale % 4 startup=3s", "flap % 50% period=3s for=12s", "silent % 40%", "refuse % 30%", "slow % 30%", "answer % 100%", "rollout % startup=2s grace=5s",
		}[random.IntN(12)]
		switch {
		case len(c.Routes) > 0 && random.IntN(2) == 0:
			r := slices.SortedFunc(maps.Values(c.Routes), (*model.Route).Compare)[random.IntN(len(c.Routes))]
			if len(r.Backends) > 0 {
				to := r.Backends[random.IntN(len(r.Backends))]
				fmt.Fprintf(&b, "weight %s %s:%d %d\n", r.Name.Name, to.Service, to.Port, 10*random.IntN(4))
			}
		case len(services) > 0 && strings.Contains(verb, " % "):
			fmt.Fprintln(&b, strings.Replace(verb, "%", services[random.IntN(len(services))], 1))
		case strings.Contains(verb, " % ") || strings.HasPrefix(verb, "zone") && !slices.Contains(zonesOf(c), "a"):
			fmt.Fprintln(&b, "node 5% back")
		default:
			fmt.Fprintln(&b, verb)
		}
	}
	return b.String() + "until 60s\n"
}

// dumbNode is a node with a planner of its own and what it counts.
type dumbNode struct {
	*outcomes.Tracker
	planner *planner.Planner
	world   *world
	demand  *demandOf
	node    *model.Node
	flows   map[model.EndpointKey]*flow  // those of signals.go: what an endpoint does is not the subject
	last    map[string]map[string]uint16 // weights by pool and address
}

func compareRun(t *testing.T, s *Simulation, got *Result, settings planner.Settings) {
	load := map[string][]float64{} // by Service port and endpoint
	shares := backendRates{}
	empty := make([]int, s.samples)
	changes := uint64(0)
	for _, name := range sortedKeys(s.world.cluster.Nodes) {
		own := settings
		set := *settings.Policies
		own.Node, own.Policies, own.ServiceLimits = name, &set, planner.Limits{}
		runDumbNode(s, name, own, func(x *dumbSample) {
			sum := 0.0
			for _, w := range x.weights {
				sum += float64(w)
			}
			if sum == 0 && x.mayForward {
				empty[x.sample]++
			}
			add := func(key string, rate float64) {
				if load[key] == nil {
					load[key] = make([]float64, s.samples)
				}
				load[key][x.sample] += rate
			}
			for address, w := range x.weights {
				if address != refused {
					add(x.port+" "+address, x.rate*float64(w)/max(sum, 1))
				}
			}
			for i, held := range x.held {
				shares.add(x, i, x.rate*held)
			}
			if x.held != nil {
				shares.add(x, -1, x.rate)
			}
		}, &changes)
	}
	run := &got.Runs[0]
	found := map[string]bool{}
	for i := range run.Services {
		r := &run.Services[i]
		for j := range r.Endpoints {
			e := &r.Endpoints[j]
			key := portOf(r) + " " + e.Address
			found[key] = true
			want := load[key]
			for k, l := range e.Load {
				if want == nil && l != 0 || want != nil && math.Abs(l-want[k]) > 1e-5 {
					t.Errorf("%s at %gs: %g, want %v", key, run.Series[k].Seconds, l, want[k:k+1])
					return
				}
			}
		}
	}
	shares.compare(t, run)
	for _, key := range sortedKeys(load) {
		if slices.Max(load[key]) > 0 && !found[key] {
			t.Errorf("%s is missing", key)
		}
	}
	for i, n := range empty {
		if run.Series[i].EmptyPools != n {
			t.Errorf("%gs: %d empty pools, want %d", run.Series[i].Seconds, run.Series[i].EmptyPools, n)
		}
	}
	if run.Summary.WeightChanges != changes {
		t.Errorf("%d weight changes, want %d", run.Summary.WeightChanges, changes)
	}
}

func portOf(r *ServiceResult) string {
	return fmt.Sprintf("%s:%s/%s/%s", r.Service, r.Port, r.Protocol, r.Family)
}

// backendRates are the connections of all nodes by port, sample and backend of its route; -1: all of them.
type backendRates map[string]map[int]map[int]float64

func (b backendRates) add(x *dumbSample, backend int, rate float64) {
	if b[x.port] == nil {
		b[x.port] = map[int]map[int]float64{}
	}
	if b[x.port][x.sample] == nil {
		b[x.port][x.sample] = map[int]float64{}
	}
	b[x.port][x.sample][backend] += rate
}

// compare compares the shares of backends: the planners' at the scale of the cluster.
func (b backendRates) compare(t *testing.T, run *Run) {
	for i := range run.Services {
		r := &run.Services[i]
		of := b[portOf(r)]
		if (of == nil) != (r.Route == "") {
			t.Errorf("%s: route %q, and the planners have %d samples of a split", portOf(r), r.Route, len(of))
		}
		for sample, want := range of {
			for j := range r.Backends {
				if got := r.Backends[j].Shares[sample]; math.Abs(got-want[j]/want[-1]) > 1e-5 {
					t.Errorf("%s at %gs: backend %d has %g, want %g", portOf(r), run.Series[sample].Seconds, j, got, want[j]/want[-1])
				}
			}
		}
	}
}

// refused stands for the address of connections that are refused.
const refused = "refused"

// dumbSample is what a node does with the connections to a Service port.
type dumbSample struct {
	sample     int
	port       string
	weights    map[string]uint16
	rate       float64
	mayForward bool      // it has endpoints at some time, or a route
	held       []float64 // shares of backends; nil: no route
}

// runDumbNode runs the planner of a node over the whole timeline.
func runDumbNode(s *Simulation, name string, settings planner.Settings, sample func(*dumbSample), changes *uint64) {
	w := s.world
	d := &dumbNode{planner: planner.New(settings, newPlugins()), world: w, demand: &s.demand, node: w.cluster.Nodes[name], Tracker: outcomes.NewTracker(),
		flows: map[model.EndpointKey]*flow{}, last: map[string]map[string]uint16{}}
	d.planner.UseSignals(d)
	first := model.NewSnapshot()
	for _, n := range w.cluster.Nodes {
		first.Apply(model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
	}
	for _, c := range w.cluster.CIDRs {
		first.Apply(model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: c.Name}, CIDR: c})
	}
	for n, svc := range w.cluster.Services {
		first.Apply(model.Change{Kind: model.ServiceKind, Name: n, Service: svc})
	}
	for _, list := range w.cluster.Slices {
		for _, slice := range list {
			first.Apply(model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: slice})
		}
	}
	for _, r := range w.cluster.Routes {
		first.Apply(routeChange(r))
	}
	first.Apply(model.Change{Kind: model.Synced})
	d.planner.Replace(first)
	type event struct {
		at      time.Duration
		changes []model.Change
	}
	var events []event
	for _, versions := range w.services {
		for _, v := range versions {
			for _, slice := range v.slices {
				events = append(events, event{v.at, []model.Change{{Kind: model.SliceKind, Name: slice.Name, Slice: slice}}})
			}
		}
	}
	for _, versions := range w.routes {
		for _, v := range versions {
			events = append(events, event{v.at, []model.Change{routeChange(v.route)}})
		}
	}
	for _, v := range w.nodes {
		if v.at > 0 {
			var all []model.Change
			for _, n := range w.cluster.Nodes {
				own := *n
				own.Ready = slices.Contains(v.ready, n.Name)
				all = append(all, model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: &own})
			}
			events = append(events, event{v.at, all})
		}
	}
	for _, t := range w.fates[name] {
		events = append(events, event{at: t})
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at - b.at) })
	requeue, read, nextSample := d.plan(-settle, changes), -countBefore, 0
	for {
		next := min(requeue, read)
		if len(events) > 0 {
			next = min(next, events[0].at)
		}
		for nextSample < s.samples && s.sampleTime(nextSample) < next {
			d.sample(s, nextSample, sample)
			nextSample++
		}
		if next > w.end {
			break
		}
		lost := isLost(w.fates[name], next)
		for len(events) > 0 && events[0].at <= next {
			d.planner.Apply(events[0].changes)
			events = events[1:]
		}
		if next == read {
			d.read(next)
			read += defaultPeriod
		}
		if lost {
			d.flows = map[model.EndpointKey]*flow{}
			requeue = never
			continue
		}
		requeue = d.plan(next, changes)
	}
}

func routeChange(r *model.Route) model.Change {
	return model.Change{Kind: model.RouteKind, Group: r.Name.Kind, Name: r.Name.Name, Route: r}
}

// plan plans at t, and returns when to plan again.
func (d *dumbNode) plan(t time.Duration, changes *uint64) time.Duration {
	d.advance(t)
	at := time.Time{}
	for again := true; again; {
		r := d.planner.PlanNow(d.world.start.Add(t))
		at, again = r.RequeueAt, r.Remaining > 0
	}
	for _, f := range d.flows {
		f.present, f.rate = false, 0
	}
	for _, name := range d.planner.ServiceNames() {
		x, err := d.planner.Explain(name)
		if err != nil {
			panic(err)
		}
		for i := range x.Decisions {
			for pool, decision := range [...]*policy.Decision{abi.PoolCluster: &x.Decisions[i].Cluster, abi.PoolLocal: &x.Decisions[i].Local} {
				if decision.Weights != nil {
					d.take(t, x.Service, &x.Decisions[i], pool, decision, changes)
				}
			}
		}
	}
	for key, f := range d.flows {
		if !f.present {
			delete(d.flows, key)
		}
	}
	if at.IsZero() {
		return never
	}
	return max(at.Sub(d.world.start), t+time.Millisecond)
}

func loadPoolOf(svc *model.Service, family model.Family) int {
	switch {
	case family != model.FamilyOf(svc.ClusterIPs[0]):
		return -1
	case svc.InternalLocal:
		return abi.PoolLocal
	}
	return abi.PoolCluster
}

func poolKey(x *policy.PortDecision, pool int) string {
	label := x.Port.Name.Port
	if label == "" {
		label = fmt.Sprint(x.Port.Spec.Port)
	}
	return fmt.Sprintf("%s:%s/%s/%s", x.Port.Name.Service, label, x.Port.Name.Protocol, x.Port.Family) + []string{"", " local"}[pool]
}

// take takes a decision about a pool.
func (d *dumbNode) take(t time.Duration, svc *model.Service, x *policy.PortDecision, pool int, decision *policy.Decision, changes *uint64) {
	now := map[string]uint16{}
	if decision.Refused > 0 {
		now[refused] = decision.Refused
	}
	sum := int(decision.Refused)
	for _, w := range decision.Weights {
		sum += int(w)
	}
	rate := 0.0
	if pool == loadPoolOf(svc, x.Port.Family) && sum > 0 {
		rate = d.demand.rate(d.node, x.Port.Name, x.Port.Spec.Port) / float64(sum)
	}
	for i := range x.Port.Endpoints {
		e := &x.Port.Endpoints[i]
		if pool == abi.PoolLocal && !e.Local {
			continue
		}
		weight := decision.Weights[i]
		if weight > 0 {
			now[e.Addr.String()] = weight
		}
		if weight > 0 || e.Terminating && !e.Ready || decision.KeepDraining != nil && decision.KeepDraining[i] {
			key := model.EndpointKey{Addr: e.Addr, Protocol: x.Port.Name.Protocol}
			if d.flows[key] == nil {
				d.flows[key] = &flow{at: t}
			}
			d.flows[key].present = true
			d.flows[key].rate += rate * float64(weight)
		}
	}
	key := poolKey(x, pool)
	if before, ok := d.last[key]; ok && t >= 0 {
		for address := range now {
			if before[address] != now[address] {
				*changes++
			}
		}
		for address := range before {
			if now[address] == 0 {
				*changes++
			}
		}
	}
	d.last[key] = now
}

func (d *dumbNode) sample(s *Simulation, n int, sample func(*dumbSample)) {
	t := s.sampleTime(n)
	if isLost(d.world.fates[d.node.Name], t) {
		return
	}
	for _, name := range d.planner.ServiceNames() {
		x, err := d.planner.Explain(name)
		if err != nil {
			panic(err)
		}
		for i := range x.Decisions {
			p := x.Decisions[i].Port
			if pool := loadPoolOf(x.Service, p.Family); pool >= 0 {
				key := poolKey(&x.Decisions[i], pool)
				out := dumbSample{sample: n, port: strings.TrimSuffix(key, " local"), weights: d.last[key], rate: d.demand.rate(d.node, p.Name, p.Spec.Port)}
				if split := x.Splits[i]; split != nil {
					out.held, out.mayForward = []float64{}, true
					for j := range split.Parts {
						out.held = append(out.held, split.Parts[j].Pools[pool].Held)
					}
				}
				out.mayForward = out.mayForward || d.everHasEndpoints(s, name, p)
				sample(&out)
			}
		}
	}
}

// everHasEndpoints reports whether a port has an endpoint at some time.
func (d *dumbNode) everHasEndpoints(s *Simulation, name model.Name, p *eligibility.Port) bool {
	for _, v := range d.world.versionsOf(name) {
		for _, slice := range v.slices {
			if slice.Family == p.Family && slices.ContainsFunc(slice.Ports, func(q model.SlicePort) bool { return q.Name == p.Spec.Name && q.Protocol == p.Spec.Protocol }) {
				for _, e := range slice.Endpoints {
					if s.rules[0].Check(e.Addr) == nil {
						return true
					}
				}
			}
		}
	}
	return false
}

func (d *dumbNode) advance(t time.Duration) {
	for key, f := range d.flows {
		f.advance(d.world.answers[key.Addr.Addr()], defaultLifetime, t)
	}
}

func (d *dumbNode) read(t time.Duration) {
	d.advance(t)
	for key, f := range d.flows {
		f.count(d.world.answerAt(key.Addr.Addr(), t), t)
	}
	at := d.world.start.Add(t)
	changes := d.Tracker.Update(at, func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for key, f := range d.flows {
			if !yield(key, f.counters) {
				return
			}
		}
	})
	_, _, window := d.Tracker.Last()
	d.planner.AddOutcomes(at, window, changes)
}

func (d *dumbNode) ConnectionsAge(time.Time) (time.Duration, bool) { return 0, true }

func (d *dumbNode) Connections(k model.EndpointKey) (uint32, bool) {
	if f := d.flows[k]; f != nil {
		return uint32(math.Round(f.open)), true
	}
	return 0, true
}
