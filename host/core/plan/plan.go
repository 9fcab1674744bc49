// Package plan defines the desired state of the data plane: the frontends, and the endpoints and weights that new connections are
// distributed to. It describes meaning, not means: chains, maps, marks, slots, schedulers and virtual servers are private to the
// backends.
//
// The package is pure: no I/O, no clock, no goroutine.
package plan

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Plan is a complete desired state. A Frontend is immutable once it is in a plan, and plans may share it. The map belongs to the
// owner of the plan.
type Plan struct {
	Global    Global
	Frontends map[Key]*Frontend
}

// Global applies to all frontends. Slices are sorted and without duplicates, and contain both families.
type Global struct {
	// NodePortAddrs are this node's addresses that NodePort frontends listen on. Never loopback.
	NodePortAddrs []netip.Addr
	// LocalhostAddrs are the loopback addresses that serve NodePorts over TCP, by a proxy in user space. Of the other protocols,
	// packets of the node to NodePorts there are refused and counted (KEP-6032).
	LocalhostAddrs []netip.Addr
	// PodSources are the source ranges that count as Pods of this cluster (kube-proxy's detect-local by CIDR).
	// Without a range of a family, no source of that family counts as a Pod.
	PodSources []netip.Prefix
	// PodInterfaces are input interfaces whose sources count as Pods: names, or prefixes of names ending in "*". A source that
	// matches PodSources or PodInterfaces counts as a Pod.
	PodInterfaces []string
	// ServiceCIDRs are the Service ranges. Packets to an address in them that no frontend has are dropped.
	ServiceCIDRs []netip.Prefix
	// NoMasquerade are endpoints' addresses to which connections keep their source, whatever a frontend's Masquerade, except
	// those of an endpoint to itself (KEP-6246).
	NoMasquerade []netip.Prefix
	// MasqueradeMark is the packet mark of connections to be masqueraded; exactly one bit.
	MasqueradeMark uint32
}

// Kind is the Service field that a frontend comes from.
type Kind uint8

// The kinds of frontend. Other ports of an address that has a ClusterIP frontend are rejected.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// Frontend is an address (or NodePort), protocol and port with the rules for new connections to it.
type Frontend struct {
	Key   Key
	Kind  Kind
	Owner model.PortName
	// Pool is the pool for all sources; with Outside set, only for Pods and this node.
	Pool Pool
	// Outside is the pool for other sources under externalTrafficPolicy Local; nil otherwise.
	Outside *Pool
	// Masquerade selects the sources that are masqueraded. A connection whose source is the chosen endpoint itself (hairpin) is
	// always masqueraded.
	Masquerade Masquerade
	// Affinity is the session affinity timeout by client address; 0: none. All frontends of Owner share the affinity entries.
	// Each new connection restarts the timeout.
	Affinity time.Duration
	Balance  Balance
	// Outcomes means that the outcomes of connections to the endpoints of both pools are counted, those of weight 0 included. The
	// counters belong to the endpoint: connections through other frontends that lead to it count too.
	Outcomes bool
	// RetryRefused means that a connection over TCP which its endpoint refuses does not fail at once: its client repeats the SYN,
	// after a second, and that is balanced again. A second refusal is the client's.
	RetryRefused bool
	// LongLived means that packets of established connections may pass by the rules, by a flowtable: Kubernetes' TrafficHint
	// (KEP-4963). Only TCP and UDP. A node that cannot do so forwards them like those of others.
	LongLived bool
	// SourceRanges are the only sources that may connect, also for Pods and this node; others are dropped. Nil: all sources.
	// Sorted and unique; one may contain others.
	SourceRanges []netip.Prefix
	// Degraded is what was wanted and the backend cannot represent, nil if nothing is lost: see Fitter. It has no influence on
	// forwarding.
	Degraded *Degraded
}

// Pool is a verdict on new connections and the endpoints that they are distributed to.
type Pool struct {
	// Verdict is Forward if and only if an endpoint has a weight above 0.
	Verdict Verdict
	// Endpoints are sorted by address and unique.
	Endpoints []Endpoint
}

// AllEndpoints returns the endpoints of both pools. One that is in both comes twice.
func (f *Frontend) AllEndpoints() iter.Seq[*Endpoint] {
	return func(yield func(*Endpoint) bool) {
		for _, p := range []*Pool{&f.Pool, f.Outside} {
			if p == nil {
				continue
			}
			for i := range p.Endpoints {
				if !yield(&p.Endpoints[i]) {
					return
				}
			}
		}
	}
}

// Takes reports whether an endpoint gets new connections through a frontend.
func (f *Frontend) Takes(endpoint netip.AddrPort) bool {
	return f.Pool.takes(endpoint) || f.Outside != nil && f.Outside.takes(endpoint)
}

func (p *Pool) takes(endpoint netip.AddrPort) bool {
	i, found := slices.BinarySearchFunc(p.Endpoints, endpoint, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return found && p.Endpoints[i].Weight > 0
}

// Total returns the sum of the endpoints' weights.
func (p *Pool) Total() int {
	sum := 0
	for _, m := range p.Endpoints {
		sum += int(m.Weight)
	}
	return sum
}

// Verdict is what happens to a new connection.
type Verdict uint8

// The verdicts. Reject is ICMP port unreachable, for TCP too.
const (
	Forward Verdict = iota
	Reject
	Drop
)

// Endpoint is an endpoint in a pool. It gets a new connection with probability Weight / Total.
type Endpoint struct {
	Addr   netip.AddrPort
	Weight uint16
	Phase  Phase
	// Remote means that the endpoint is on another node, as far as its nodeName says. It has no influence on forwarding: its
	// connections to itself do not pass this node, so a backend need not prepare for them. The text forms do not have it.
	Remote   bool
	Deadline int64 // when established connections are reset, Unix milliseconds; 0: never
}

// Refusing returns the address of the endpoint whose connections are refused, as by Reject: RFC 7600 and RFC 6666 keep these
// addresses from being anybody's. So a part of a pool's connections can be refused, by weight.
func Refusing(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return netip.AddrFrom16([16]byte{0: 1, 15: 8})
	}
	return netip.AddrFrom4([4]byte{192, 0, 0, 8})
}

// IsRefusing reports whether connections to an endpoint are refused.
func IsRefusing(a netip.Addr) bool { return a == Refusing(model.FamilyOf(a)) }

// Phase is the lifecycle phase of an endpoint. It has no influence on forwarding.
type Phase uint8

// The phases of an endpoint.
const (
	Active Phase = iota
	Draining
)

// Masquerade selects the sources whose connections are masqueraded (apart from hairpin).
type Masquerade uint8

// The masquerade rules.
const (
	MasqueradeNever    Masquerade = iota
	MasqueradeOutside             // sources that are not Pods, if Pods are detected (ClusterIP)
	MasqueradeAlways              // externalTrafficPolicy Cluster, masqueradeAll
	MasqueradeFromNode            // sources that are this node's own addresses (externalTrafficPolicy Local)
)

// Balance is the load balancing algorithm.
type Balance uint8

// The load balancing algorithms, all weighted. Random is the default.
const (
	Random Balance = iota
	RoundRobin
	SourceHash
	LeastConnections
)

// Keys returns the keys of all frontends, sorted.
func (p *Plan) Keys() []Key {
	keys := make([]Key, 0, len(p.Frontends))
	for k := range p.Frontends {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}
