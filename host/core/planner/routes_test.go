package planner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// randomRoute changes a route of the cluster of randomChange: cycles, Services and ports that do not exist, weights of 0.
func randomRoute(r *rand.Rand) model.Change {
	name := model.ObjectName{Kind: model.TCPRouteKind, Name: model.Name{Namespace: "shop", Name: fmt.Sprint("r", r.IntN(3))}}
	c := model.Change{Kind: model.RouteKind, Group: name.Kind, Name: name.Name}
	if r.IntN(4) == 0 {
		return c
	}
	c.Route = &model.Route{Name: name, Created: int64(r.IntN(2))}
	for range 1 + r.IntN(2) {
		c.Route.Parents = append(c.Route.Parents, model.RouteParent{Service: fmt.Sprint("s", r.IntN(4)), Section: []string{"", "p0", "p1"}[r.IntN(3)]})
	}
	for range r.IntN(4) {
		c.Route.Backends = append(c.Route.Backends, model.RouteBackend{
			Service: fmt.Sprint("s", r.IntN(5)), Port: uint16(80 + r.IntN(3)), Weight: []uint32{0, 1, 1, 10, 90, model.MaxRouteWeight}[r.IntN(6)],
		})
	}
	return c
}

// shareOf returns the part of the connections to a frontend that an endpoint gets; the zero value stands for refusing.
func sharesOf(f *plan.Frontend) map[netip.AddrPort]float64 {
	out := map[netip.AddrPort]float64{}
	total := float64(f.Pool.Total())
	if total == 0 {
		return map[netip.AddrPort]float64{{}: 1}
	}
	for _, e := range f.Pool.Endpoints {
		at := e.Addr
		if plan.IsRefusing(at.Addr()) {
			at = netip.AddrPort{}
		}
		if e.Weight > 0 {
			out[at] += float64(e.Weight) / total
		}
	}
	return out
}

// TestSharesOfRoutes compares random clusters with the same clusters without routes: what a backend's own ClusterIP does with its
// connections is what its share of a route's connections does. A Service without a cluster pool is left out.
func TestSharesOfRoutes(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 80
	}
	compared, refused, several := 0, 0, 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 35))
		with, without := New(testSettings(), nativePlugins), New(testSettings(), nativePlugins)
		cluster := model.NewSnapshot()
		for range 80 {
			c := randomChange(r)
			if c.Service != nil { // every frontend belongs to its Service
				c.Service.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 98, 0, c.Service.Name.Name[1]})}
				c.Service.InternalLocal = false
			}
			with.Apply([]model.Change{c})
			cluster.Apply(c)
			if c.Kind != model.RouteKind {
				without.Apply([]model.Change{c})
			}
		}
		for _, p := range []*Planner{with, without} {
			p.Apply([]model.Change{{Kind: model.Synced}})
			p.PlanNow(time.Unix(1000, 0))
		}
		for key, f := range with.Current().Frontends {
			if f.Kind != plan.ClusterIP {
				continue
			}
			route, want := wantedShares(cluster, without.Current(), f)
			if route == nil {
				want = sharesOf(without.Current().Frontends[key])
			} else if compared++; len(route.Backends) > 1 {
				several++
			}
			got := sharesOf(f)
			for at, share := range want {
				if at == (netip.AddrPort{}) && share > 0 && share < 1 {
					refused++
				}
				// One percent, or a slot of a thousand.
				if math.Abs(got[at]-share) > 0.011*share+0.0011 {
					t.Fatalf("seed %d: %s: %s gets %.4f, want %.4f\nroute %+v\n%s", seed, key, at, got[at], share, route, plan.FormatFrontend(f))
				}
				delete(got, at)
			}
			for at, share := range got {
				if share > 0 {
					t.Fatalf("seed %d: %s: %s gets %.4f, want none\nroute %+v", seed, key, at, share, route)
				}
			}
		}
	}
	if compared < int(seeds) || several < int(seeds)/4 || refused < int(seeds)/20 {
		t.Errorf("%d ports with routes, %d of them with several backends, %d refuse a part: too few", compared, several, refused)
	}
}

// wantedShares returns the route of a frontend's port, nil for none, and the shares that it asks for.
func wantedShares(c *model.Snapshot, own *plan.Plan, f *plan.Frontend) (*model.Route, map[netip.AddrPort]float64) {
	var route *model.Route
	for _, r := range c.Routes {
		for _, p := range r.Parents {
			if p.Service == f.Owner.Service.Name && (p.Section == "" || p.Section == f.Owner.Port) &&
				(route == nil || r.Created < route.Created || r.Created == route.Created && r.Name.Name.Name < route.Name.Name.Name) {
				route = r
			}
		}
	}
	if route == nil {
		return nil, nil
	}
	out, sum := map[netip.AddrPort]float64{}, 0.0
	for _, b := range route.Backends {
		sum += float64(b.Weight)
	}
	if sum == 0 {
		return route, map[netip.AddrPort]float64{{}: 1}
	}
	for _, b := range route.Backends {
		share := float64(b.Weight) / sum
		svc := c.Services[model.Name{Namespace: "shop", Name: b.Service}]
		if svc == nil || !slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.Port == b.Port }) {
			out[netip.AddrPort{}] += share
			continue
		}
		for at, part := range sharesOf(own.Frontends[plan.Key{Addr: svc.ClusterIPs[0], Port: b.Port, Protocol: model.TCP}]) {
			out[at] += share * part
		}
	}
	return route, out
}

// canary is a cluster with the Services web, web-v1 and web-v2, each with endpoints, and one that is none of theirs.
func canary(endpoints int) []model.Change {
	out := manyServices(4, endpoints)
	names := []string{"web", "web-v1", "web-v2", "other"}
	for i := range out {
		c := &out[i]
		for j, n := range names {
			if c.Name.Name == fmt.Sprint("s", j) {
				c.Name.Name = n
				if c.Service != nil {
					c.Service.Name = c.Name
				}
				if c.Slice != nil {
					s := *c.Slice
					s.Name, s.Service = c.Name, c.Name
					s.Endpoints = slices.Clone(s.Endpoints)
					for k := range s.Endpoints {
						s.Endpoints[k].Addr, s.Endpoints[k].Hints = netip.AddrFrom4([4]byte{10, 244, byte(10 + j), byte(1 + k)}), nil
					}
					c.Slice = &s
				}
			}
		}
	}
	return out
}

func split(weights ...uint32) model.Change {
	name := model.ObjectName{Kind: model.TCPRouteKind, Name: model.Name{Namespace: "shop", Name: "web"}}
	r := &model.Route{Name: name, Parents: []model.RouteParent{{Service: "web"}}}
	for i, w := range weights {
		r.Backends = append(r.Backends, model.RouteBackend{Service: fmt.Sprint("web-v", i+1), Port: 80, Weight: w})
	}
	return model.Change{Kind: model.RouteKind, Group: name.Kind, Name: name.Name, Route: r}
}

// TestCostOfRoutesFollowsTheChange counts planned Services: a weight plans the parent, an endpoint of a backend the backend and
// its parent, and an endpoint of the parent, which gets no connections, the parent.
func TestCostOfRoutesFollowsTheChange(t *testing.T) {
	p, now := New(testSettings(), nativePlugins), time.Unix(1000, 0)
	p.Apply(append(canary(3), split(90, 10)))
	p.PlanNow(now)
	for _, c := range []struct {
		what           string
		change         model.Change
		planned, delta int
	}{
		{"a weight", split(50, 50), 1, 1},
		{"the same weights", split(50, 50), 1, 0},
		{"an endpoint of a backend", slicesOf(canary(4), "web-v2"), 2, 2},
		{"an endpoint of the parent", slicesOf(canary(4), "web"), 1, 0},
		{"an endpoint of another Service", slicesOf(canary(4), "other"), 1, 1},
	} {
		p.Apply([]model.Change{c.change})
		if res := p.PlanNow(now); res.Planned != c.planned || len(res.Delta.Changes) != c.delta {
			t.Errorf("%s: %d Services planned, %d frontends changed, want %d and %d", c.what, res.Planned, len(res.Delta.Changes), c.planned, c.delta)
		}
	}
}

func slicesOf(list []model.Change, service string) model.Change {
	return list[slices.IndexFunc(list, func(c model.Change) bool { return c.Slice != nil && c.Slice.Service.Name == service })]
}

// TestRoutesCallNoPluginTwice: the backends' decisions are those of their own ClusterIPs, and weights ask nobody.
func TestRoutesCallNoPluginTwice(t *testing.T) {
	p, now := New(testSettings(), nativePlugins), time.Unix(1000, 0)
	cluster := canary(3)
	for _, c := range cluster {
		if c.Service != nil {
			c.Service.Labels = map[string]string{"zoned": ""}
		}
	}
	p.Apply(append(cluster, split(90, 10)))
	p.PlanNow(now)
	if n := p.PluginCalls(); n != 3 { // web has no endpoints of its own that get connections
		t.Errorf("%d calls for three Services", n)
	}
	before := p.PluginCalls()
	for i := range uint32(1000) {
		p.Apply([]model.Change{split(i, 1000-i)})
		if res := p.PlanNow(now); res.Planned != 1 {
			t.Fatalf("weight %d: %d Services planned", i, res.Planned)
		}
	}
	if n := p.PluginCalls(); n != before {
		t.Errorf("%d calls for 1,000 changes of weights", n-before)
	}
}

// TestFrontendsStayWhileABackendIsDecided: in steps, each of them small, a new route never makes a frontend of the parent refuse
// or disappear.
func TestFrontendsStayWhileABackendIsDecided(t *testing.T) {
	p, now := New(testSettings(), nativePlugins), time.Unix(1000, 0)
	planInSteps(p)
	p.stepCost = minStepCost
	p.Apply(canary(200))
	p.PlanNow(now)
	key := plan.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, 0}), Port: 80, Protocol: model.TCP}
	for _, c := range []model.Change{split(90, 10), split(0, 10), split(1, 0), split(50, 50)} {
		p.Apply([]model.Change{c})
		for range 100 {
			res := p.PlanNow(now)
			f := p.Current().Frontends[key]
			if f == nil || f.Pool.Verdict != plan.Forward || slices.ContainsFunc(f.Pool.Endpoints, func(e plan.Endpoint) bool { return plan.IsRefusing(e.Addr.Addr()) }) {
				t.Fatalf("%+v: the frontend is %+v", c.Route.Backends, f)
			}
			if res.Remaining == 0 {
				break
			}
		}
	}
	if f := p.Current().Frontends[key]; len(f.Pool.Endpoints) != 400 {
		t.Errorf("%d endpoints", len(f.Pool.Endpoints))
	}
}

// TestHugeRoutesAreBounded: backends with more endpoints than a port may have leave room for each other.
func TestHugeRoutesAreBounded(t *testing.T) {
	settings := testSettings()
	settings.ServiceLimits.Endpoints = 100
	p := New(settings, nativePlugins)
	p.Apply(append(canary(90), split(1, 3)))
	p.PlanNow(time.Unix(1000, 0))
	f := p.Current().Frontends[plan.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, 0}), Port: 80, Protocol: model.TCP}]
	of := map[byte]float64{}
	for at, share := range sharesOf(f) {
		of[at.Addr().As4()[2]] += share
	}
	if len(f.Pool.Endpoints) != 100 || math.Abs(of[11]-0.25) > 0.005 || math.Abs(of[12]-0.75) > 0.005 {
		t.Errorf("%d endpoints with shares %v", len(f.Pool.Endpoints), of)
	}
	if got := p.Omitted(); len(got) != 1 || got[0].Owner.Service.Name != "web" {
		t.Errorf("left out: %v", got)
	}
	for _, c := range []struct{ sizes, want []int }{
		{[]int{5, 5}, []int{5, 5}}, {[]int{90, 90}, []int{50, 50}}, {[]int{10, 95}, []int{10, 90}}, {[]int{0, 200, 30, 100}, []int{0, 35, 30, 35}}, {nil, nil},
	} {
		var got []int
		for _, n := range c.sizes {
			got = append(got, min(n, roomFor(c.sizes, 100)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.sizes, got, c.want)
		}
	}
}
