package fake

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Packet is the first or a later packet of a connection.
type Packet struct {
	// From is the client. Port 0 stands for an unused port and a connection that ends immediately: always a new
	// connection, which is not recorded.
	From netip.AddrPort
	// Interface is the input interface; empty for packets from the node itself.
	Interface string
	To        netip.AddrPort
	Protocol  model.Protocol
}

// Result describes what happens to a Packet.
type Result struct {
	Ours        bool // false: not handled by sluice
	Verdict     plan.Verdict
	Frontend    plan.Key // zero if none matches
	Outside     bool     // the pool for outside sources was used
	Endpoint    netip.AddrPort
	Masqueraded bool
	Established bool // part of an established connection
	Sticky      bool // chosen by session affinity
	Response    Response
	Why         string // human-readable
}

// Conn is an established connection.
type Conn struct {
	Packet      Packet
	Frontend    plan.Key
	Endpoint    netip.AddrPort
	Masqueraded bool
}

// forwarding is the state of a data plane that is not in its tables.
type forwarding struct {
	rng   *rand.Rand
	flows map[tuple]*Conn
	// unreplied are the connections to silent endpoints. The next packet of one goes to the same endpoint.
	unreplied map[tuple]*Conn
	load      map[netip.AddrPort]int // established connections by endpoint
	sticky    map[affinityKey]affinityEntry
	turns     map[turn]int64 // of weighted round robin

	outcomes  map[model.EndpointKey]backend.OutcomeCounters
	responses map[model.EndpointKey]Response
}

type tuple struct {
	from, to netip.AddrPort
	protocol model.Protocol
}

// affinityKey and affinityEntry are key and value of a session affinity entry. All frontends of a Service port share them.
type affinityKey struct {
	addr netip.Addr
	port model.PortName
}

// turn identifies an endpoint's counter in the smooth weighted round robin of a frontend.
type turn struct {
	frontend plan.Key
	endpoint netip.AddrPort
}

type affinityEntry struct {
	endpoint netip.AddrPort
	expires  time.Time
}

// Connect sends a packet. A packet of an established connection goes to that connection's endpoint, regardless of the
// plan. Any other starts a new connection under the current plan.
func (k *Kernel) Connect(p Packet) Result {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := tuple{p.From, p.To, p.Protocol}
	if c := k.flows[t]; c != nil && c.Endpoint == p.To {
		return Result{Why: "a flow that was not translated"}
	} else if c != nil {
		return Result{Ours: true, Frontend: c.Frontend, Endpoint: c.Endpoint, Masqueraded: c.Masqueraded, Established: true, Why: "an established connection"}
	}
	if c := k.unreplied[t]; c != nil {
		r := Result{Ours: true, Frontend: c.Frontend, Endpoint: c.Endpoint, Masqueraded: c.Masqueraded, Why: "a connection without an answer"}
		r.Response = k.responses[model.EndpointKey{Addr: c.Endpoint, Protocol: p.Protocol}]
		if r.Response != Silent {
			delete(k.unreplied, t)
		}
		k.remember(t, c, r.Response)
		return r
	}
	programmed := k.tables[Name]
	if programmed == nil {
		return Result{Why: "nothing is programmed"}
	}
	flow := plan.Flow{From: p.From.Addr(), Interface: p.Interface, To: p.To, Protocol: p.Protocol}
	o := programmed.Trace(flow, k.o.NodeAddrs)
	r := Result{Ours: o.Matched, Verdict: o.Verdict, Outside: o.Outside, Why: o.Why}
	if !o.Matched && p.Protocol == model.UDP && p.From.Port() != 0 {
		k.remember(t, &Conn{Packet: p, Endpoint: p.To}, Answers)
	}
	if o.Frontend != nil {
		r.Frontend = o.Frontend.Key
	}
	if len(o.Candidates) == 0 {
		return r
	}
	c, sticky := k.choose(o.Frontend, p.From.Addr(), o.Candidates)
	if plan.IsRefusing(c.Addr.Addr()) {
		r.Verdict, r.Why = plan.Reject, "the endpoint refuses"
		return r
	}
	r.Endpoint, r.Masqueraded, r.Sticky = c.Addr, c.Masquerade, sticky
	r.Response = k.countOutcome(model.EndpointKey{Addr: c.Addr, Protocol: p.Protocol})
	if p.From.Port() != 0 {
		k.remember(t, &Conn{Packet: p, Frontend: r.Frontend, Endpoint: r.Endpoint, Masqueraded: r.Masqueraded}, r.Response)
	}
	return r
}

// remember remembers a connection by what its endpoint has responded.
func (k *Kernel) remember(t tuple, c *Conn, r Response) {
	switch r {
	case Answers:
		k.flows[t] = c
		k.load[c.Endpoint]++
	case Silent:
		k.unreplied[t] = c
	}
}

// choose selects a candidate by session affinity, whose timeout restarts, or by the frontend's Balance.
func (k *Kernel) choose(f *plan.Frontend, from netip.Addr, list []plan.Candidate) (c plan.Candidate, sticky bool) {
	id := affinityKey{from, f.Owner}
	if f.Affinity > 0 {
		if s, ok := k.sticky[id]; ok && k.clock().Before(s.expires) {
			if i := slices.IndexFunc(list, func(c plan.Candidate) bool { return c.Addr == s.endpoint }); i >= 0 {
				c, sticky = list[i], true
			}
		}
	}
	if !sticky {
		c = k.balance(f, from, list)
	}
	if f.Affinity > 0 && !plan.IsRefusing(c.Addr.Addr()) {
		k.sticky[id] = affinityEntry{c.Addr, k.clock().Add(f.Affinity)}
	}
	return c, sticky
}

func (k *Kernel) balance(f *plan.Frontend, from netip.Addr, list []plan.Candidate) plan.Candidate {
	total := uint64(0)
	for _, c := range list {
		total += uint64(c.Weight)
	}
	switch f.Balance {
	case plan.RoundRobin:
		return k.next(f.Key, list, int64(total))
	case plan.SourceHash:
		return slices.MaxFunc(list, func(a, b plan.Candidate) int { return compare(score(from, a), score(from, b)) })
	case plan.LeastConnections:
		return slices.MinFunc(list, func(a, b plan.Candidate) int {
			return k.load[a.Addr]*int(b.Weight) - k.load[b.Addr]*int(a.Weight)
		})
	}
	return nth(list, k.rng.Uint64N(total))
}

// next implements smooth weighted round robin: every endpoint's counter grows by its weight, the largest wins and is
// reduced by the total. Of any run of total connections, each endpoint gets exactly its weight, spread out.
func (k *Kernel) next(frontend plan.Key, list []plan.Candidate, total int64) plan.Candidate {
	best := list[0]
	for _, c := range list {
		k.turns[turn{frontend, c.Addr}] += int64(c.Weight)
		if k.turns[turn{frontend, c.Addr}] > k.turns[turn{frontend, best.Addr}] {
			best = c
		}
	}
	k.turns[turn{frontend, best.Addr}] -= total
	return best
}

// nth returns the endpoint of slot n if each endpoint has as many slots as its weight.
func nth(list []plan.Candidate, n uint64) plan.Candidate {
	for _, c := range list {
		if n < uint64(c.Weight) {
			return c
		}
		n -= uint64(c.Weight)
	}
	panic("fake: a slot beyond the total weight")
}

// score implements weighted rendezvous hashing: a change of one endpoint moves only the clients that it gains or loses.
func score(from netip.Addr, c plan.Candidate) float64 {
	h := fnv.New64a()
	b := from.As16()
	h.Write(b[:])
	b = c.Addr.Addr().As16()
	h.Write(b[:])
	h.Write([]byte{byte(c.Addr.Port() >> 8), byte(c.Addr.Port())})
	// Finalize, because the high bits of FNV differ little for short inputs; then scale 53 bits to (0, 1).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	u := (float64(x>>11) + 0.5) / (1 << 53)
	return float64(c.Weight) / -math.Log(u)
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// deleteStaleAffinity deletes the affinity entries of a Service port for endpoints that none of its frontends forwards to any
// more. If such an endpoint returns, it starts without clients.
func (k *Kernel) deleteStaleAffinity(t *plan.Plan, owner model.PortName) {
	if !slices.ContainsFunc(slices.Collect(maps.Keys(k.sticky)), func(c affinityKey) bool { return c.port == owner }) {
		return
	}
	alive := map[netip.AddrPort]bool{}
	note := func(p *plan.Pool) {
		for _, m := range p.Endpoints {
			if m.Weight > 0 {
				alive[m.Addr] = true
			}
		}
	}
	for _, f := range t.Frontends {
		if f.Owner == owner && f.Affinity > 0 {
			note(&f.Pool)
			if f.Outside != nil {
				note(f.Outside)
			}
		}
	}
	maps.DeleteFunc(k.sticky, func(c affinityKey, s affinityEntry) bool { return c.port == owner && !alive[s.endpoint] })
}

// Conns returns the established connections, sorted by frontend, client and destination.
func (k *Kernel) Conns() []Conn {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Conn, 0, len(k.flows))
	for _, c := range k.flows {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Conn) int {
		if c := a.Frontend.Compare(b.Frontend); c != 0 {
			return c
		}
		if c := a.Packet.From.Compare(b.Packet.From); c != 0 {
			return c
		}
		return a.Packet.To.Compare(b.Packet.To)
	})
	return out
}

// Disconnect ends the connection of a packet, as its client would, and reports whether there was one.
func (k *Kernel) Disconnect(p Packet) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.end(func(c *Conn) bool {
		return c.Packet.From == p.From && c.Packet.To == p.To && c.Packet.Protocol == p.Protocol
	}) > 0
}

// Reset implements engine.ConnTable.
func (k *Kernel) Reset(ctx context.Context, resets []plan.Reset, _ backend.Resetter) (n plan.ResetCount, err error) {
	if err := ctx.Err(); err != nil {
		return n, fmt.Errorf("fake: reset: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.Connections = k.end(func(c *Conn) bool {
		return slices.Contains(resets, plan.Reset{Frontend: c.Frontend, Endpoint: c.Endpoint})
	})
	return n, nil
}

// Shed implements engine.ConnShedder.
func (k *Kernel) Shed(ctx context.Context, sheds []plan.Shed, _ backend.Resetter) (n plan.ResetCount, deferred []bool, err error) {
	if err := ctx.Err(); err != nil {
		return n, nil, fmt.Errorf("fake: shed: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.Connections = k.end(func(c *Conn) bool {
		return slices.ContainsFunc(sheds, func(s plan.Shed) bool {
			hash := uint64(plan.ShedHash(s.Seed, c.Packet.From, c.Packet.To))
			return c.Endpoint == s.Endpoint && slices.Contains(s.Frontends, c.Frontend) && hash >= s.From && hash < s.To
		})
	})
	return n, nil, nil
}

// DeleteStaleUDP implements engine.ConnTable.
func (k *Kernel) DeleteStaleUDP(ctx context.Context, f model.Family, _ []plan.Key, stale func(to, endpoint netip.AddrPort) bool) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("fake: delete stale flows: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	is := func(c *Conn) bool {
		p := &c.Packet
		return p.Protocol == model.UDP && model.FamilyOf(p.To.Addr()) == f && stale(p.To, c.Endpoint)
	}
	before := len(k.unreplied)
	maps.DeleteFunc(k.unreplied, func(_ tuple, c *Conn) bool { return is(c) })
	return k.end(is) + before - len(k.unreplied), nil
}

// DeleteUnreplied implements engine.ConnTable.
func (k *Kernel) DeleteUnreplied(ctx context.Context, to []plan.Reset) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("fake: delete connections without an answer: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.unreplied)
	maps.DeleteFunc(k.unreplied, func(_ tuple, c *Conn) bool {
		return slices.Contains(to, plan.Reset{Frontend: c.Frontend, Endpoint: c.Endpoint})
	})
	return before - len(k.unreplied), nil
}

func (k *Kernel) end(which func(*Conn) bool) int {
	n := 0
	for t, c := range k.flows {
		if which(c) {
			delete(k.flows, t)
			k.load[c.Endpoint]--
			n++
		}
	}
	return n
}
