package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
)

// winners says who gets which frontend, straight from the rules: for each key, of the Services whose claim to the address is
// as strong as any Service's, the first by kind, age and name. An address of the node is not a load balancer's alone, and
// nobody's external IP is where the API server listens.
func winners(services map[model.Name]*model.Service, node []netip.Addr, reserved map[plan.Key]bool) map[plan.Key]string {
	kinds := []plan.Kind{plan.ClusterIP, plan.NodePort, plan.LoadBalancer, plan.ExternalIP}
	rank := func(k plan.Kind) int { return slices.Index(kinds, k) }
	kindAt := func(s *model.Service, a netip.Addr) (plan.Kind, bool) {
		switch {
		case slices.Contains(s.ClusterIPs, a):
			return plan.ClusterIP, true
		case slices.Contains(s.LoadBalancerIPs, a):
			return plan.LoadBalancer, true
		case slices.Contains(s.ReservedIPs, a):
			return plan.LoadBalancer, false
		case slices.Contains(s.ExternalIPs, a):
			return plan.ExternalIP, true
		}
		return plan.NodePort, false
	}
	type contender struct {
		svc  *model.Service
		kind plan.Kind
	}
	keys := map[plan.Key][]contender{}
	for _, s := range services {
		for _, p := range s.Ports {
			for _, a := range slices.Concat(s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs) {
				k := plan.Key{Addr: a, Port: p.Port, Protocol: p.Protocol}
				if kind, served := kindAt(s, a); served && s.HasFamily(model.FamilyOf(a)) {
					keys[k] = append(keys[k], contender{s, kind})
				}
			}
			for _, a := range s.ClusterIPs {
				wildcard := netip.IPv4Unspecified()
				if a.Is6() {
					wildcard = netip.IPv6Unspecified()
				}
				if k := (plan.Key{Addr: wildcard, Port: p.NodePort, Protocol: p.Protocol}); p.NodePort != 0 {
					keys[k] = append(keys[k], contender{s, plan.NodePort})
				}
			}
		}
	}
	out := map[plan.Key]string{}
	for k, list := range keys {
		strongest := rank(plan.ExternalIP)
		for _, s := range services {
			if kind, _ := kindAt(s, k.Addr); kind != plan.NodePort {
				strongest = min(strongest, rank(kind))
			}
		}
		list = slices.DeleteFunc(list, func(c contender) bool {
			own := rank(c.kind)
			if c.kind == plan.ExternalIP && slices.Contains(node, k.Addr) {
				own = rank(plan.LoadBalancer)
			}
			return own > strongest || c.kind == plan.ExternalIP && reserved[k]
		})
		if len(list) > 0 {
			first := slices.MinFunc(list, func(x, y contender) int {
				return cmp.Or(rank(x.kind)-rank(y.kind), cmp.Compare(x.svc.Created, y.svc.Created), x.svc.Name.Compare(y.svc.Name))
			})
			out[k] = fmt.Sprint(first.svc.Name, " ", first.kind)
		}
	}
	return out
}

func planned(p *plan.Plan) map[plan.Key]string {
	out := map[plan.Key]string{}
	for k, f := range p.Frontends {
		out[k] = fmt.Sprint(f.Owner.Service, " ", f.Kind)
	}
	return out
}

// randomClaims returns a Service of a few addresses and ports that others have too.
func randomClaims(r *rand.Rand, name model.Name) *model.Service {
	s := &model.Service{Name: name, Created: int64(r.IntN(3))}
	pick := func(one int) (out []netip.Addr) {
		for i := range 5 {
			if r.IntN(one) == 0 {
				out = append(out, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
			}
		}
		r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		return out
	}
	s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8))})}
	s.ExternalIPs, s.LoadBalancerIPs, s.ReservedIPs = pick(2), pick(4), pick(8)
	for i := range 1 + r.IntN(4) {
		p := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(80 + i)}
		if r.IntN(3) == 0 {
			p.NodePort = uint16(30000 + i)
		}
		s.Ports = append(s.Ports, p)
	}
	r.Shuffle(len(s.Ports), func(i, j int) { s.Ports[i], s.Ports[j] = s.Ports[j], s.Ports[i] })
	return s
}

// TestClaimsMatchReferenceImplementation also does it in slices of the smallest budget, and in other orders.
func TestClaimsMatchReferenceImplementation(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 11))
		settings := testSettings()
		p := New(settings, nativePlugins)
		if seed%2 == 1 {
			planInSteps(p)
		}
		p.Apply([]model.Change{{Kind: model.Synced}})
		p.PlanNow(time.Unix(1000, 0))
		services := map[model.Name]*model.Service{}
		var node []netip.Addr
		reserved := map[plan.Key]bool{}
		for range 40 {
			name := model.Name{Namespace: fmt.Sprint("n", r.IntN(2)), Name: fmt.Sprint("s", r.IntN(5))}
			c := model.Change{Kind: model.ServiceKind, Name: name}
			switch r.IntN(10) {
			case 0:
				delete(services, name)
			case 1:
				node = nil
				for i := range 5 {
					if r.IntN(3) == 0 {
						node = append(node, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
					}
				}
				p.SetLocalAddrs(node)
				continue
			case 2:
				at := plan.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(5))}), Port: 81, Protocol: model.TCP}
				reserved = map[plan.Key]bool{at: true}
				c = model.Change{Kind: model.SliceKind, Name: apiServerService, Slice: &model.EndpointSlice{Name: apiServerService, Service: apiServerService,
					Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: at.Port}}, Endpoints: []model.SliceEndpoint{{Addr: at.Addr}}}}
			default:
				services[name] = randomClaims(r, name)
				c.Service = services[name]
			}
			p.Apply([]model.Change{c})
			if r.IntN(3) == 0 {
				continue
			}
			p.stepCost = 8 + r.IntN(300)
			for steps := 0; ; steps++ {
				step := p.PlanNow(time.Unix(1000, 0))
				if step.Remaining == 0 {
					break
				} else if steps == 10_000 {
					t.Fatalf("seed %d: no end", seed)
				}
				if steps < 20 && r.IntN(4) == 0 { // a change between two steps
					services[name] = randomClaims(r, name)
					p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: services[name]}})
				}
			}
			want, got := winners(services, node, reserved), planned(p.Current())
			if !maps.Equal(want, got) {
				for _, k := range slices.SortedFunc(maps.Keys(want), plan.Key.Compare) {
					if want[k] != got[k] {
						t.Errorf("%s: %q, want %q", k, got[k], want[k])
					}
				}
				t.Fatalf("seed %d: %v, want %v", seed, got, want)
			}
			wanted := 0
			for name := range p.cluster.Services {
				wanted += len(p.claims.Wanted(name))
			}
			if n := len(p.Conflicts()); n != wanted-len(got) || n != p.claims.NumConflicts() {
				t.Fatalf("seed %d: %d conflicts, counted %d; %d claims, %d frontends", seed, n, p.claims.NumConflicts(), wanted, len(got))
			}
			if err := p.claims.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// contestants are n Services that want the same ports of one external IP.
func contestants(n, ports int) []model.Change {
	var out []model.Change
	for i := range n {
		name := model.Name{Namespace: "shop", Name: fmt.Sprintf("c%06d", i)}
		s := &model.Service{Name: name, Created: int64(n - i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		for j := range ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", j), Protocol: model.TCP, Port: uint16(1 + j), NodePort: uint16(30000 + j)})
		}
		out = append(out, model.Change{Kind: model.ServiceKind, Name: name, Service: s})
	}
	return out
}

// TestCostOfContestedFrontendsIsLogarithmic: it is that of the Service that changes, however many want the same.
func TestCostOfContestedFrontendsIsLogarithmic(t *testing.T) {
	cost := func(services int) int {
		p := New(testSettings(), nativePlugins)
		p.Apply(append(contestants(services, 5), model.Change{Kind: model.Synced}))
		p.PlanNow(time.Unix(1000, 0))
		if got, want := p.claims.NumConflicts(), 10*(services-1); got != want {
			t.Fatalf("%d conflicts, want %d", got, want)
		}
		if n := p.claims.Work.Comparisons; n > services*11*4*bits(services) {
			t.Errorf("%d comparisons to plan %d Services", n, services)
		}
		most := 0
		for _, i := range []int{0, services / 2, services - 1} { // the last one is the oldest
			c := contestants(services, 5)[i]
			for _, change := range []model.Change{{Kind: c.Kind, Name: c.Name}, c} {
				p.claims.Work = claims.Work{}
				p.Apply([]model.Change{change})
				p.PlanNow(time.Unix(1000, 0))
				if p.claims.Work.Puts > 25 {
					t.Errorf("%d frontends changed by one Service of 15", p.claims.Work.Puts)
				}
				most = max(most, p.claims.Work.Comparisons)
			}
		}
		return most
	}
	small, large := cost(100), cost(2000)
	t.Logf("comparisons for a change of one of 100 and 2000 Services: %d, %d", small, large)
	if limit := small * bits(2000) / bits(100); large > 2*limit {
		t.Errorf("%d comparisons of 2000 Services, %d of 100", large, small)
	}
}

func bits(n int) (b int) {
	for ; n > 0; n >>= 1 {
		b++
	}
	return b
}

// TestCostOfLargeServiceIsLinear: many ports at many external IPs.
func TestCostOfLargeServiceIsLinear(t *testing.T) {
	cost := func(ports int) claims.Work {
		p := New(testSettings(), nativePlugins)
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "large"}, Service: largeService(ports, 60)}, {Kind: model.Synced}})
		p.PlanNow(time.Unix(1000, 0))
		if n := len(p.Current().Frontends); n != 61*ports {
			t.Fatalf("%d frontends of %d ports", n, ports)
		}
		return p.claims.Work
	}
	small, large := cost(50), cost(500)
	if large.Comparisons > 10*small.Comparisons || large.Puts > 10*small.Puts {
		t.Errorf("%+v for 500 ports, %+v for 50", large, small)
	}
}

func largeService(ports, externalIPs int) *model.Service {
	s := &model.Service{Name: model.Name{Namespace: "shop", Name: "large"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.98.0.1")}}
	for i := range externalIPs {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	for i := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(1 + i)})
	}
	return s
}

// TestLimitsKeepTheSameOnEveryNode: what is left out depends neither on the order of changes nor on the budget of a Plan.
func TestLimitsKeepTheSameOnEveryNode(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 21))
		settings := testSettings()
		settings.ServiceLimits = Limits{Frontends: 1 + r.IntN(12), Endpoints: 1 + r.IntN(6), SourceRanges: 1 + r.IntN(2), Elements: 1 + r.IntN(60)}
		svc := randomClaims(r, model.Name{Namespace: "shop", Name: "s"})
		svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("10.3.0.0/16")}
		svc.ExternalLocal = r.IntN(2) == 0
		changes := []model.Change{{Kind: model.ServiceKind, Name: svc.Name, Service: svc}}
		for i := range 3 {
			s := slice(svc.Name, r.IntN(5))
			s.Name.Name = fmt.Sprint("slice", i)
			s.Ports = nil
			for _, p := range svc.Ports {
				s.Ports = append(s.Ports, model.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: uint16(8000 + i)})
			}
			changes = append(changes, model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
		}
		var first *plan.Plan
		for node := range 4 {
			r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
			p := New(settings, nativePlugins)
			limited := 0
			count := func(step Result) Result { limited += len(step.NewlyLimited); return step }
			if node%2 == 0 {
				p.Apply(append(slices.Clone(changes), model.Change{Kind: model.Synced}))
				count(p.PlanNow(time.Unix(1000, 0)))
			} else {
				planInSteps(p)
				p.Apply([]model.Change{{Kind: model.Synced}})
				p.PlanNow(time.Unix(1000, 0))
				p.stepCost = 16
				p.Apply(changes)
				for n := 0; count(p.PlanNow(time.Unix(1000, 0))).Remaining > 0; n++ {
					if n == 1000 {
						t.Fatalf("seed %d: no end", seed)
					}
				}
			}
			if first == nil {
				first = p.Current()
			}
			if !first.Equal(p.Current()) {
				t.Fatalf("seed %d:\n%s\n%s", seed, plan.Format(first), plan.Format(p.Current()))
			}
			if err := plan.Validate(p.Current()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			elements, pools := 0, 0
			for _, f := range p.Current().Frontends {
				elements += len(f.Pool.Endpoints) + len(f.SourceRanges)
				if f.Outside != nil {
					elements += len(f.Outside.Endpoints)
				}
				pools = max(pools, len(f.Pool.Endpoints))
				if len(f.SourceRanges) > settings.ServiceLimits.SourceRanges {
					t.Fatalf("seed %d: %d source ranges", seed, len(f.SourceRanges))
				}
			}
			if n := len(p.Current().Frontends); n > settings.ServiceLimits.Frontends || pools > settings.ServiceLimits.Endpoints || elements > settings.ServiceLimits.Elements {
				t.Fatalf("seed %d: %d frontends, %d endpoints, %d elements, limits %+v", seed, n, pools, elements, settings.ServiceLimits)
			}
			all := New(testSettings(), nativePlugins)
			all.Apply(append(slices.Clone(changes), model.Change{Kind: model.Synced}))
			all.PlanNow(time.Unix(1000, 0))
			whole := all.Current().Equal(p.Current())
			x, err := p.Explain(svc.Name)
			if err != nil || whole != (len(x.Omitted) == 0) || len(x.Omitted) != len(p.Omitted()) || (limited > 0) == whole {
				t.Fatalf("seed %d: nothing is left out: %v, explained: %v, reported: %d", seed, whole, x.Omitted, limited)
			}
			if got := p.counters.Limited(); (got == 1) == whole {
				t.Fatalf("seed %d: %d limited Services", seed, got)
			}
		}
	}
}

// TestChangesOfOneNamespaceDoNotDelayAnother: while a namespace has thousands of changed Services and a large one, a Service of
// another namespace is planned in the next step, and each step does a bounded amount of work.
func TestChangesOfOneNamespaceDoNotDelayAnother(t *testing.T) {
	settings := testSettings()
	settings.ServiceLimits = Limits{Frontends: 5000, Endpoints: 20_000, Elements: 500_000}
	p := New(settings, nativePlugins)
	planInSteps(p)
	p.Apply([]model.Change{{Kind: model.Synced}})
	p.PlanNow(time.Unix(1000, 0))
	large := largeService(2000, 60)
	large.Name.Namespace = "tenant"
	hostile := append(contestants(2000, 5), model.Change{Kind: model.ServiceKind, Name: large.Name, Service: large})
	p.Apply(hostile)
	const most = 2 * maxStepCost / elementCost // a step ends with the Service that spends the rest of its budget
	steps := 0
	for ; ; steps++ {
		name := model.Name{Namespace: "victim", Name: "web"}
		svc := &model.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.99.0.1")},
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: uint16(1 + steps)}}}
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}})
		p.claims.Work = claims.Work{}
		step := p.PlanNow(time.Unix(1000, 0))
		if p.Current().Frontends[plan.Key{Addr: svc.ClusterIPs[0], Port: svc.Ports[0].Port, Protocol: model.TCP}] == nil {
			t.Fatalf("step %d: the other namespace's Service was not planned", steps)
		}
		if p.claims.Work.Puts > most || len(step.Delta.Changes) > most {
			t.Fatalf("step %d: %d frontends, %d changes", steps, p.claims.Work.Puts, len(step.Delta.Changes))
		}
		if step.Remaining == 0 {
			break
		} else if steps == 10_000 {
			t.Fatal("no end")
		}
	}
	if n := len(p.claims.Wanted(large.Name)); n != 5000 {
		t.Errorf("%d frontends of the large Service", n)
	}
	t.Logf("%d steps", steps)
}

func BenchmarkLargeService(b *testing.B) {
	large := largeService(2000, 60)
	for b.Loop() {
		p := New(testSettings(), nativePlugins)
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: large.Name, Service: large}, {Kind: model.Synced}})
		p.PlanNow(time.Unix(1000, 0))
	}
}

func BenchmarkContestants(b *testing.B) {
	changes := append(contestants(4000, 5), model.Change{Kind: model.Synced})
	for b.Loop() {
		p := New(testSettings(), nativePlugins)
		p.Apply(changes)
		p.PlanNow(time.Unix(1000, 0))
	}
}

func BenchmarkEndpointUpdate(b *testing.B) { benchmarkUpdates(b, testSettings()) }
