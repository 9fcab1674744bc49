package conformance

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/plangen"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Wire makes connections through a subject's data plane. Everything that its clients send to 10.96.0.0/16,
// 198.51.100.0/24, 203.0.113.0/24, fd00:10:96::/112 and 2001:db8::/32 has to be routed there.
type Wire struct {
	Global  plan.Global    // node port addresses, Pod sources and so on, as they are there
	Node    plan.NodeAddrs // the node's own addresses
	Clients []Client       // Pods, the node and clients outside, of each family; Pods with a server among Members too
	// Members are the servers: each says which it is and whom it sees. At least four of a family.
	Members []netip.AddrPort
	// OnNode are more servers, at addresses of the node itself: connections to them from elsewhere do not leave the
	// node, so that none is masqueraded.
	OnNode    []netip.AddrPort
	Protocols []model.Protocol // what the servers speak; TCP among them
	// Connect makes a connection.
	Connect func(c Client, to netip.AddrPort, p model.Protocol) (Seen, error)
	// Listen puts a server where packets to an address end up that sluice leaves alone: on the node when the address
	// is its own, else beyond its default route. A connection to it is Seen.Passed.
	Listen func(to netip.AddrPort, p model.Protocol) (stop func(), err error)
	// Taken tells of an address whether what is programmed has made it the node's own, as IPVS needs it; nil: none
	// is. What would be left alone there is refused, so that it does not meet the node's servers.
	Taken func(a netip.Addr) bool
	// Parallel is how many Connects may run at the same time; 0: one.
	Parallel int
	// Connections are made where shares are measured; 0: 2000.
	Connections int
}

// Client is where a connection comes from.
type Client struct {
	Name      string
	From      netip.Addr
	Interface string // where its packets come in, as in plan.Flow
	// Plain says of a client on the node that the kernel would never choose From by itself: when it is masqueraded,
	// that shows.
	Plain bool
	// Patience is how long to wait for an answer before silence is a Drop; 0: as long as the subject thinks fit.
	Patience time.Duration
}

// Seen is what a client, and the server, saw.
type Seen struct {
	// Verdict as the client can tell: Forward when a server answered, Reject when the connection was refused at once,
	// Drop when nothing came back. On Linux:
	//   - a sender on the node itself may see EPERM for both; what a read says then tells them apart;
	//   - rejects turn into silence after a few, unless net.ipv4.icmp_ratelimit and net.ipv6.icmp.ratelimit are 0 in the
	//     node's namespace;
	//   - through veth pairs the answer to a SYN of TCP over IPv6 comes while the client's socket is locked, and is
	//     ignored (LockDroppedIcmps); only that to the second SYN counts, after 1 s.
	Verdict plan.Verdict
	Passed  bool           // sluice left it alone: a server of Listen answered
	Member  netip.AddrPort // the server that answered
	Source  netip.Addr     // of the client, as the server saw it
	// Again asks on the same connection; it gives the server that answers now. Set when Verdict is Forward.
	Again func() (netip.AddrPort, error)
	Close func()
}

func (s *session) connect(c Client, to netip.AddrPort, proto model.Protocol) Seen {
	s.Helper()
	seen, err := s.sub.Wire.Connect(c, to, proto)
	if err != nil {
		s.Fatalf("%s: %s → %s/%s: %v", s.where, c.Name, to, proto, err)
	}
	if seen.Close == nil {
		seen.Close = func() {}
	}
	return seen
}

// destinations compares what happens with what plan.Resolve says, for every client and frontend of random plans.
func (s *session) destinations() {
	w := s.sub.Wire
	counts := map[string]int{}
	refused := map[string]bool{} // refusals may cost a time-out: one of each kind has to do
	for i := range 3 * s.depth {
		if s.depth > 1 {
			clear(refused)
		}
		seed := s.seed + uint64(i)
		g := plangen.New(seed, plangen.Options{
			Global: &w.Global, Targets: w.Members, Protocols: w.Protocols, Families: s.families(), Ports: 5, Members: 4})
		p := g.Plan()
		s.addFixtures(p)
		s.where = fmt.Sprintf("seed %d", seed)
		s.apply(p, nil)
		held, _ := plan.Normalize(p, s.backend.Caps())
		stuck := map[string]netip.AddrPort{}
		for _, k := range held.Keys() {
			for _, to := range w.ways(k) {
				for _, c := range w.Clients {
					if model.FamilyOf(c.From) != k.Family() {
						continue
					}
					s.where = fmt.Sprintf("seed %d: %s → %s (%s)", seed, c.Name, k, held.Frontends[k].Owner)
					counts[s.one(held, c, to, k.Protocol, stuck, refused)]++
				}
			}
		}
	}
	s.Logf("connections by what became of them: %v", counts)
	for _, what := range []string{"forward", "masquerade", "reject", "drop"} {
		if counts[what] == 0 {
			s.Errorf("no connection was to come to %s: too few kinds of clients", what)
		}
	}
}

// addFixtures puts in what random plans may lack: a Service without endpoints, one that lets a single client through
// its source ranges, and one with session affinity across two ways in.
func (s *session) addFixtures(p *plan.Plan) {
	for _, family := range s.families() {
		to, c, members := s.oneService(family)
		all := plan.Pool{}
		for _, m := range members {
			all.Members = append(all.Members, plan.Member{Addr: m, Weight: 1})
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
			f.Key.Protocol = s.sub.Wire.Protocols[0]
			port := "p" + strconv.Itoa(int(f.Key.Port)%100) // both ways in at 83 are one Service port
			f.Owner = model.PortName{Service: model.Name{Namespace: "shop", Name: "fixture"}, Port: port, Protocol: f.Key.Protocol}
			p.Frontends[f.Key] = &f
		}
	}
}

// one makes connections from a client to a frontend, three of them, or one that is refused.
func (s *session) one(held *plan.Plan, c Client, to netip.AddrPort, proto model.Protocol, stuck map[string]netip.AddrPort, refused map[string]bool) string {
	w := s.sub.Wire
	want := held.Resolve(plan.Flow{From: c.From, Interface: c.Interface, To: to, Protocol: proto}, w.Node)
	tries := 3
	if want.Verdict != plan.Drop {
		c.Patience = patience
	}
	if want.Verdict != plan.Forward {
		kind := fmt.Sprint(c.Name, want.Frontend.Kind, proto, want.Verdict, want.Why)
		if refused[kind] {
			return "not tried again"
		}
		refused[kind], tries = true, 1
	}
	for range tries {
		seen := s.connect(c, to, proto)
		seen.Close()
		if seen.Verdict != want.Verdict {
			s.Fatalf("%s: %s, want %s: %s\n%s", s.where, seen.Verdict, want.Verdict, want.Why, plan.FormatFrontend(want.Frontend))
		}
		if seen.Verdict != plan.Forward {
			continue
		}
		i := slices.IndexFunc(want.Candidates, func(c plan.Candidate) bool { return c.Addr == seen.Member })
		if i < 0 {
			s.Fatalf("%s: went to %s: %s\n%s", s.where, seen.Member, want.Why, plan.FormatFrontend(want.Frontend))
		}
		// The node's own address stays what it is when it is masqueraded.
		if masqueraded := seen.Source != c.From; !w.Node.Has(c.From) && masqueraded != want.Candidates[i].Masquerade {
			s.Fatalf("%s: %s sees %s, masquerade wanted: %v: %s\n%s", s.where, seen.Member, seen.Source,
				want.Candidates[i].Masquerade, want.Why, plan.FormatFrontend(want.Frontend))
		}
		// Time-outs of a second may pass between two connections; the long ones do not.
		if want.Frontend.Affinity < 30*time.Second {
			continue
		}
		id := c.From.String() + " " + want.Frontend.Owner.String() + "/" + proto.String()
		last, known := stuck[id]
		mayStay := slices.ContainsFunc(want.Candidates, func(c plan.Candidate) bool { return c.Addr == last })
		if known && mayStay && last != seen.Member {
			s.Fatalf("%s: session affinity: went to %s, before to %s\n%s", s.where, seen.Member, last, plan.FormatFrontend(want.Frontend))
		}
		stuck[id] = seen.Member
	}
	if want.Verdict == plan.Forward && want.Candidates[0].Masquerade {
		return "masquerade"
	}
	return want.Verdict.String()
}

// ways are the addresses that lead to a key.
func (w *Wire) ways(k plan.Key) []netip.AddrPort {
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

// weights measures shares by χ²: first of few members, then after weights changed.
func (s *session) weights() {
	w := s.sub.Wire
	n := w.Connections
	if n == 0 {
		n = 2000
	}
	prev := empty()
	for _, family := range s.families() {
		to, c, members := s.oneService(family)
		key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: model.TCP}
		for _, weights := range [][]uint16{{1, 1, 1, 1}, {1, 2, 5, 0}, {65535, 65535, 21845, 1}, {0, 0, 3, 1}} {
			s.where = fmt.Sprintf("%s weights %v", family, weights)
			next := service(w.Global, key, members, weights)
			s.apply(next, plan.Diff(prev, next))
			prev = next
			held := s.read()
			got := map[netip.AddrPort]int{}
			c.Patience = patience
			for range n {
				seen := s.connect(c, to, model.TCP)
				seen.Close()
				got[seen.Member]++
			}
			s.chiSquare(&held.Frontends[key].Pool, got, n)
		}
	}
}

// chiSquare compares counts with the shares of a pool; a fair data plane fails it once in a million times.
func (s *session) chiSquare(p *plan.Pool, got map[netip.AddrPort]int, n int) {
	s.Helper()
	total, sum, kinds, counted := float64(p.Total()), 0.0, 0, 0
	for _, m := range p.Members {
		if m.Weight == 0 {
			if got[m.Addr] > 0 {
				s.Fatalf("%s: %s has weight 0 and got %d of %d", s.where, m.Addr, got[m.Addr], n)
			}
			continue
		}
		counted += got[m.Addr]
		due := float64(n) * float64(m.Weight) / total
		if due < 5 { // too few for χ²; a Poisson bound far out
			if float64(got[m.Addr]) > due+5*math.Sqrt(due)+8 {
				s.Fatalf("%s: %s got %d, due %.1f", s.where, m.Addr, got[m.Addr], due)
			}
			continue
		}
		kinds++
		sum += (float64(got[m.Addr]) - due) * (float64(got[m.Addr]) - due) / due
	}
	if counted != n {
		s.Fatalf("%s: %d of %d connections reached a member with weight: %v", s.where, counted, n, got)
	}
	if kinds < 2 {
		return
	}
	// Wilson and Hilferty's approximation of the χ² quantile, 4.75 standard deviations out.
	df := float64(kinds - 1)
	limit := df * math.Pow(1-2/(9*df)+4.75*math.Sqrt(2/(9*df)), 3)
	if sum > limit {
		s.Fatalf("%s: χ² %.1f over %.1f for %d connections: %v", s.where, sum, limit, n, got)
	}
	s.Logf("%s: χ² %.1f under %.1f", s.where, sum, limit)
}

// families are those that the wire has members of.
func (s *session) families() []model.Family {
	var out []model.Family
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if slices.ContainsFunc(s.sub.Wire.Members, func(m netip.AddrPort) bool { return model.FamilyOf(m.Addr()) == f }) {
			out = append(out, f)
		}
	}
	return out
}

// oneService gives an address to put a Service at, a client that is no member, and four members.
func (s *session) oneService(family model.Family) (netip.AddrPort, Client, []netip.AddrPort) {
	s.Helper()
	to := netip.MustParseAddrPort("10.96.0.80:80")
	if family == model.IPv6 {
		to = netip.MustParseAddrPort("[fd00:10:96::80]:80")
	}
	var members []netip.AddrPort
	for _, m := range s.sub.Wire.Members {
		if model.FamilyOf(m.Addr()) == family {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, netip.AddrPort.Compare)
	i := slices.IndexFunc(s.sub.Wire.Clients, func(c Client) bool {
		return model.FamilyOf(c.From) == family && !s.sub.Wire.Node.Has(c.From) &&
			!slices.ContainsFunc(members, func(m netip.AddrPort) bool { return m.Addr() == c.From })
	})
	if len(members) < 4 || i < 0 {
		s.Fatalf("the wire has %d members and no client apart from them of %s; want four and one", len(members), family)
	}
	return to, s.sub.Wire.Clients[i], members[:4]
}

// service is a plan of one ClusterIP.
func service(g plan.Global, key plan.Key, members []netip.AddrPort, weights []uint16) *plan.Plan {
	f := &plan.Frontend{
		Key:   key,
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: key.Protocol},
	}
	for i, m := range members {
		f.Pool.Members = append(f.Pool.Members, plan.Member{Addr: m, Weight: weights[i]})
	}
	if f.Pool.Total() == 0 {
		f.Pool.Verdict = plan.Reject
	}
	return &plan.Plan{Global: g, Frontends: map[plan.Key]*plan.Frontend{f.Key: f}}
}
