package conformance

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// Traffic makes connections through a fixture's data plane. Packets of its clients to 10.96.0.0/16, 198.51.100.0/24,
// 203.0.113.0/24, fd00:10:96::/112 and 2001:db8::/32 must be routed there.
type Traffic struct {
	Global  plan.Global    // node port addresses, Pod sources and so on of the fixture
	Node    plan.NodeAddrs // the node's own addresses
	Clients []Client       // Pods, the node and external clients, of each family; also Pods that are among Servers
	// Servers report their own address and the client address that they see. At least four of each family.
	Servers []netip.AddrPort
	// HostNetworkServers listen on addresses of the node itself. Connections to them from elsewhere do not leave the
	// node, so they are never masqueraded.
	HostNetworkServers []netip.AddrPort
	Protocols          []model.Protocol // of the servers; must include TCP
	// Connect makes a connection.
	Connect func(c Client, to netip.AddrPort, p model.Protocol) (Outcome, error)
	// Listen starts a server that receives packets to an address if sluice does not handle them: on the node if the
	// address is its own, otherwise beyond its default route. A connection to it has Outcome.NotProxied.
	Listen func(to netip.AddrPort, p model.Protocol) (stop func(), err error)
	// NodeOwns reports whether the backend has made an address the node's own, as IPVS requires; nil: none is. Packets
	// to such an address that match no frontend are rejected, so that they do not reach the node's own servers.
	NodeOwns func(a netip.Addr) bool
	// Parallel is the number of concurrent Connect calls; 0 means 1.
	Parallel int
	// RoundRobin says that shares are exact after as many connections as the sum of a pool's weights. A distribution is
	// measured with whole rounds then.
	RoundRobin bool
}

// Client is the origin of a connection.
type Client struct {
	Name      string
	From      netip.Addr
	Interface string // on which its packets arrive, as in plan.Flow
	// ExplicitSource marks a client on the node whose From the kernel would never choose by itself, so that
	// masquerading is visible.
	ExplicitSource bool
	// Timeout is the time after which silence counts as Drop; 0 means the fixture's default.
	Timeout time.Duration
}

// Outcome is what the client and the server observed.
type Outcome struct {
	// Verdict is Forward if a server answered, Reject if the connection was refused, Drop if there was no answer. On
	// Linux:
	//   - a sender on the node itself may get EPERM for both Reject and Drop; a subsequent read distinguishes them;
	//   - rejects turn into silence after a few, unless net.ipv4.icmp_ratelimit and net.ipv6.icmp.ratelimit are 0 in the
	//     node's namespace;
	//   - across veth pairs, the ICMPv6 error for a TCP SYN arrives while the client's socket is locked and is ignored
	//     (LockDroppedIcmps); only the one for the second SYN counts, after 1 s.
	Verdict    plan.Verdict
	NotProxied bool           // sluice did not handle it: a server of Listen answered
	Server     netip.AddrPort // that answered
	Source     netip.Addr     // of the client, as the server saw it
	// Reuse sends another request on the same connection and returns the server that answers. Set if Verdict is Forward.
	Reuse func() (netip.AddrPort, error)
	Close func()
}

func (s *session) connect(c Client, to netip.AddrPort, proto model.Protocol) Outcome {
	s.Helper()
	seen, err := s.fixture.Traffic.Connect(c, to, proto)
	if err != nil {
		s.Fatalf("%s: %s → %s/%s: %v", s.step, c.Name, to, proto, err)
	}
	if seen.Close == nil {
		seen.Close = func() {}
	}
	return seen
}

// destinations compares outcomes with plan.Trace, for every client and frontend of random plans.
func (s *session) destinations() {
	w := s.fixture.Traffic
	counts := map[string]int{}
	refused := map[string]bool{} // rejected connections may cost a timeout: one of each kind is enough
	for i := range s.times(3) {
		if s.depth > 1 {
			clear(refused)
		}
		seed := s.seed + uint64(i)
		g := testgen.NewPlans(seed, testgen.PlanOptions{
			Global: &w.Global, Targets: w.Servers, Protocols: w.Protocols, Families: s.families(), Ports: 5, Endpoints: 4})
		p := g.Plan()
		// A Service at a client's address takes it over where the node gets the addresses of Services.
		maps.DeleteFunc(p.Frontends, func(k plan.Key, _ *plan.Frontend) bool {
			return slices.ContainsFunc(w.Clients, func(c Client) bool { return c.From == k.Addr })
		})
		s.addFixtures(p)
		s.step = fmt.Sprintf("seed %d", seed)
		s.apply(p, nil)
		normalized := plan.Normalize(p, s.backend.Caps())
		sticky := map[string]netip.AddrPort{}
		for _, k := range normalized.Keys() {
			for _, to := range w.destinations(k) {
				for _, c := range w.Clients {
					if model.FamilyOf(c.From) != k.Family() {
						continue
					}
					s.step = fmt.Sprintf("seed %d: %s → %s (%s)", seed, c.Name, k, normalized.Frontends[k].Owner)
					counts[s.checkFlow(normalized, c, to, k.Protocol, sticky, refused)]++
				}
			}
		}
	}
	s.Logf("connections by outcome: %v", counts)
	for _, what := range []string{"forward", "masquerade", "reject", "drop"} {
		if counts[what] == 0 {
			s.Errorf("no connection resulted in %s: too few kinds of clients", what)
		}
	}
}

// addFixtures adds what random plans may lack: a Service without endpoints, one whose source ranges allow a single
// client, and one with session affinity across two frontends.
func (s *session) addFixtures(p *plan.Plan) {
	for _, family := range s.families() {
		to, c, endpoints := s.oneService(family)
		all := plan.Pool{}
		for _, m := range endpoints {
			all.Endpoints = append(all.Endpoints, plan.Endpoint{Addr: m, Weight: 1})
		}
		nodePort := netip.IPv4Unspecified()
		if family == model.IPv6 {
			nodePort = netip.IPv6Unspecified()
		}
		for _, f := range []plan.Frontend{
			{Key: plan.Key{Addr: to.Addr(), Port: 81}, Pool: plan.Pool{Verdict: plan.Reject}},
			{Key: plan.Key{Addr: to.Addr(), Port: 82}, Kind: plan.LoadBalancer, Pool: all, SourceRanges: []netip.Prefix{netip.PrefixFrom(c.From, c.From.BitLen())}},
			{Key: plan.Key{Addr: to.Addr(), Port: 83}, Pool: all, Affinity: time.Hour},
			{Key: plan.Key{Addr: nodePort, Port: 29083}, Kind: plan.NodePort, Masquerade: plan.MasqueradeAlways, Pool: all, Affinity: time.Hour},
		} {
			f.Key.Protocol = s.fixture.Traffic.Protocols[0]
			port := "p" + strconv.Itoa(int(f.Key.Port)%100) // both frontends at 83 belong to one Service port
			f.Owner = model.PortName{Service: model.Name{Namespace: "shop", Name: "fixture"}, Port: port, Protocol: f.Key.Protocol}
			p.Frontends[f.Key] = &f
		}
	}
}

// checkFlow makes three connections from a client to a frontend, or one if it is expected to be rejected.
func (s *session) checkFlow(p *plan.Plan, c Client, to netip.AddrPort, proto model.Protocol, sticky map[string]netip.AddrPort, refused map[string]bool) string {
	w := s.fixture.Traffic
	want := p.Trace(plan.Flow{From: c.From, Interface: c.Interface, To: to, Protocol: proto}, w.Node)
	tries := 3
	if want.Verdict != plan.Drop {
		c.Timeout = answerTimeout
	}
	if want.Verdict != plan.Forward {
		kind := fmt.Sprint(c.Name, want.Frontend.Kind, proto, want.Verdict, want.Why)
		if refused[kind] {
			return "skipped"
		}
		refused[kind], tries = true, 1
	}
	for range tries {
		seen := s.connect(c, to, proto)
		seen.Close()
		if seen.Verdict != want.Verdict {
			s.Fatalf("%s: %s, want %s: %s\n%s", s.step, seen.Verdict, want.Verdict, want.Why, plan.FormatFrontend(want.Frontend))
		}
		if seen.Verdict != plan.Forward {
			continue
		}
		i := slices.IndexFunc(want.Candidates, func(c plan.Candidate) bool { return c.Addr == seen.Server })
		if i < 0 {
			s.Fatalf("%s: went to %s: %s\n%s", s.step, seen.Server, want.Why, plan.FormatFrontend(want.Frontend))
		}
		// Masquerading does not change the node's own address.
		if masqueraded := seen.Source != c.From; !w.Node.Contains(c.From) && masqueraded != want.Candidates[i].Masquerade {
			s.Fatalf("%s: %s sees %s, masquerade wanted: %v: %s\n%s", s.step, seen.Server, seen.Source,
				want.Candidates[i].Masquerade, want.Why, plan.FormatFrontend(want.Frontend))
		}
		// Short affinity timeouts may expire between two connections; long ones do not.
		if want.Frontend.Affinity < 30*time.Second {
			continue
		}
		id := c.From.String() + " " + want.Frontend.Owner.String() + "/" + proto.String()
		last, known := sticky[id]
		mayStay := slices.ContainsFunc(want.Candidates, func(c plan.Candidate) bool { return c.Addr == last })
		if known && mayStay && last != seen.Server {
			s.Fatalf("%s: session affinity: went to %s, before to %s\n%s", s.step, seen.Server, last, plan.FormatFrontend(want.Frontend))
		}
		sticky[id] = seen.Server
	}
	if want.Verdict == plan.Forward && want.Candidates[0].Masquerade {
		return "masquerade"
	}
	return want.Verdict.String()
}

// destinations are the addresses that lead to a key.
func (w *Traffic) destinations(k plan.Key) []netip.AddrPort {
	if slices.ContainsFunc(w.Clients, func(c Client) bool { return c.From == k.Addr }) {
		return nil // the client itself would answer
	}
	if !k.IsNodePort() {
		return []netip.AddrPort{netip.AddrPortFrom(k.Addr, k.Port)}
	}
	var out []netip.AddrPort
	for _, a := range w.Global.NodePortAddrs {
		if model.FamilyOf(a) == k.Family() {
			out = append(out, netip.AddrPortFrom(a, k.Port))
		}
	}
	return out
}

// weights measures shares by χ²: first of few endpoints, then after weights changed.
func (s *session) weights() {
	w := s.fixture.Traffic
	n, atLeast := s.times(2000), 250
	if testing.Short() { // in a virtual machine a connection takes 4 ms
		n = 300
	}
	prev := empty()
	for _, family := range s.families() {
		to, c, endpoints := s.oneService(family)
		key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: model.TCP}
		for _, weights := range [][]uint16{{1, 1, 1, 1}, {1, 2, 5, 0}, {65535, 65535, 21845, 1}, {0, 0, 3, 1}} {
			s.step = fmt.Sprintf("%s weights %v", family, weights)
			next := service(w.Global, key, endpoints, weights)
			s.apply(next, plan.Diff(prev, next))
			prev = next
			programmed := s.read()
			if total := programmed.Frontends[key].Pool.Total(); w.RoundRobin {
				n = (atLeast + total - 1) / total * total
			}
			got := map[netip.AddrPort]int{}
			c.Timeout = answerTimeout
			for range n {
				seen := s.connect(c, to, model.TCP)
				seen.Close()
				got[seen.Server]++
			}
			s.chiSquare(&programmed.Frontends[key].Pool, got, n)
		}
	}
}

// chiSquare compares counts with the weights of a pool. Its false positive rate is one in a million.
func (s *session) chiSquare(p *plan.Pool, got map[netip.AddrPort]int, n int) {
	s.Helper()
	total, sum, kinds, counted := float64(p.Total()), 0.0, 0, 0
	for _, m := range p.Endpoints {
		if m.Weight == 0 {
			if got[m.Addr] > 0 {
				s.Fatalf("%s: %s has weight 0 and received %d of %d connections", s.step, m.Addr, got[m.Addr], n)
			}
			continue
		}
		counted += got[m.Addr]
		due := float64(n) * float64(m.Weight) / total
		if due < 5 { // too few for χ²: use a wide Poisson bound
			if float64(got[m.Addr]) > due+5*math.Sqrt(due)+8 {
				s.Fatalf("%s: %s received %d connections, expected %.1f", s.step, m.Addr, got[m.Addr], due)
			}
			continue
		}
		kinds++
		sum += (float64(got[m.Addr]) - due) * (float64(got[m.Addr]) - due) / due
	}
	if counted != n {
		s.Fatalf("%s: %d of %d connections reached an endpoint with weight: %v", s.step, counted, n, got)
	}
	if kinds < 2 {
		return
	}
	// Wilson and Hilferty's approximation of the χ² quantile, 4.75 standard deviations out.
	df := float64(kinds - 1)
	limit := df * math.Pow(1-2/(9*df)+4.75*math.Sqrt(2/(9*df)), 3)
	if sum > limit {
		s.Fatalf("%s: χ² %.1f over %.1f for %d connections: %v", s.step, sum, limit, n, got)
	}
	s.Logf("%s: χ² %.1f under %.1f", s.step, sum, limit)
}

// families returns the IP families of the servers.
func (s *session) families() []model.Family {
	var out []model.Family
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if slices.ContainsFunc(s.fixture.Traffic.Servers, func(m netip.AddrPort) bool { return model.FamilyOf(m.Addr()) == f }) {
			out = append(out, f)
		}
	}
	return out
}

// oneService returns a Service address, a client that is not a server, and four servers.
func (s *session) oneService(family model.Family) (netip.AddrPort, Client, []netip.AddrPort) {
	s.Helper()
	to := netip.MustParseAddrPort("10.96.0.80:80")
	if family == model.IPv6 {
		to = netip.MustParseAddrPort("[fd00:10:96::80]:80")
	}
	var endpoints []netip.AddrPort
	for _, m := range s.fixture.Traffic.Servers {
		if model.FamilyOf(m.Addr()) == family {
			endpoints = append(endpoints, m)
		}
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	i := slices.IndexFunc(s.fixture.Traffic.Clients, func(c Client) bool {
		return model.FamilyOf(c.From) == family && !s.fixture.Traffic.Node.Contains(c.From) &&
			!slices.ContainsFunc(endpoints, func(m netip.AddrPort) bool { return m.Addr() == c.From })
	})
	if len(endpoints) < 4 || i < 0 {
		s.Fatalf("there are %d servers and no other client of %s; want four and one", len(endpoints), family)
	}
	return to, s.fixture.Traffic.Clients[i], endpoints[:4]
}

// service returns a plan with one ClusterIP.
func service(g plan.Global, key plan.Key, endpoints []netip.AddrPort, weights []uint16) *plan.Plan {
	f := &plan.Frontend{
		Key:   key,
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: key.Protocol},
	}
	for i, m := range endpoints {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: m, Weight: weights[i]})
	}
	if f.Pool.Total() == 0 {
		f.Pool.Verdict = plan.Reject
	}
	return &plan.Plan{Global: g, Frontends: map[plan.Key]*plan.Frontend{f.Key: f}}
}
