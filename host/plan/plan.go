// Package plan is the desired state of the data plane: which frontends exist, and which endpoints of which weight take
// their new connections. It carries meaning only: chains, maps, marks, slots, schedulers and virtual servers are
// private to the backends that hold a plan.
//
// Everything here is pure: no I/O, no clock, no goroutine. The same input gives the same plan, byte for byte.
package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// Plan is a complete desired state. Frontends are immutable once in a plan and may be shared between plans; the map is
// owned by whoever holds the plan.
type Plan struct {
	Global    Global
	Frontends map[Key]*Frontend
}

// Global is what holds for every frontend. Slices are sorted and without duplicates; both families in one list.
type Global struct {
	// NodePortAddrs are this node's addresses that NodePort frontends answer on. Never loopback.
	NodePortAddrs []netip.Addr
	// PodSources are the source ranges that count as Pods of this cluster (kube-proxy's detect-local by CIDR).
	// None of a family: no detector for it, and no source counts as a Pod.
	PodSources []netip.Prefix
	// PodInterfaces are input interfaces whose sources count as Pods: a name, or a prefix of names ending in "*".
	// For a frontend it is enough that a source matches either list.
	PodInterfaces []string
	// ServiceCIDRs: an address in one of them that no frontend has is dropped.
	ServiceCIDRs []netip.Prefix
	// MasqueradeMark is the packet mark bit that means "masquerade on the way out"; one bit.
	MasqueradeMark uint32
}

// Key is where a frontend listens; it is unique in a plan. A NodePort's Addr is the unspecified address of its family
// (0.0.0.0 or ::) and stands for Global.NodePortAddrs.
type Key struct {
	Addr     netip.Addr
	Port     uint16
	Protocol model.Protocol
}

// IsNodePort tells a NodePort key from an address key.
func (k Key) IsNodePort() bool { return k.Addr.IsUnspecified() }

// Family of the frontend and of all its endpoints.
func (k Key) Family() model.Family { return model.FamilyOf(k.Addr) }

// String gives address:port/protocol, with * for the addresses of a NodePort: *4 and *6.
func (k Key) String() string {
	if k.IsNodePort() {
		return nodePortStar[k.Family()] + ":" + strconv.Itoa(int(k.Port)) + "/" + k.Protocol.String()
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Protocol.String()
}

// Compare orders by family, address, port, protocol.
func (k Key) Compare(l Key) int {
	if c := k.Addr.Compare(l.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Port, l.Port); c != 0 {
		return c
	}
	return cmp.Compare(k.Protocol, l.Protocol)
}

// Kind says why a frontend exists.
type Kind uint8

// The kinds of frontend. Other ports of an address that has a ClusterIP frontend are rejected.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// Frontend is an address (or NodePort), a protocol and a port, and what becomes of new connections to it.
type Frontend struct {
	Key   Key
	Kind  Kind
	Owner model.PortName
	// Pool is what a source gets; with Outside set, only a source that is a Pod or this node.
	Pool Pool
	// Outside is what sources from outside get under externalTrafficPolicy Local; nil otherwise.
	Outside *Pool
	// Masquerade says whose connections get this node's address as their source. A connection whose source is the
	// chosen endpoint itself (hairpin) is masqueraded always.
	Masquerade Masquerade
	// Affinity is the session affinity time-out by client address, shared by all frontends of Owner and sliding with
	// each new connection; 0: none.
	Affinity time.Duration
	Balance  Balance
	// SourceRanges limit who may connect, Pods and this node included; others are dropped. Nil: everyone.
	SourceRanges []netip.Prefix
}

// Pool is a list of endpoints and what happens to a new connection.
type Pool struct {
	// Verdict is Forward exactly when an endpoint has a weight above 0.
	Verdict Verdict
	// Endpoints are sorted by address and unique.
	Endpoints []Endpoint
}

// Total is the sum of the endpoints' weights.
func (p *Pool) Total() int {
	sum := 0
	for _, m := range p.Endpoints {
		sum += int(m.Weight)
	}
	return sum
}

// Verdict is what becomes of a new connection.
type Verdict uint8

// The verdicts. Reject is ICMP port unreachable, for TCP too.
const (
	Forward Verdict = iota
	Reject
	Drop
)

// Endpoint is an endpoint in a pool. A new connection goes to it with probability Weight / Total.
type Endpoint struct {
	Addr     netip.AddrPort
	Weight   uint16
	Phase    Phase
	Deadline int64 // when its established connections are reset, Unix milliseconds; 0: never
}

// Phase tells where in its life an endpoint is. It changes nothing in how packets go.
type Phase uint8

// The phases of an endpoint.
const (
	Active Phase = iota
	Draining
)

// Masquerade says which connections through a frontend are masqueraded (hairpin aside).
type Masquerade uint8

// The masquerade rules.
const (
	MasqueradeNever    Masquerade = iota
	MasqueradeOutside             // sources that are not Pods, when there is a detector (ClusterIP)
	MasqueradeAlways              // externalTrafficPolicy Cluster, masqueradeAll
	MasqueradeFromNode            // sources that are this node's own addresses (externalTrafficPolicy Local)
)

// Balance is how a new connection picks among endpoints.
type Balance uint8

// The ways to balance. Random is weighted and is the default.
const (
	Random Balance = iota
	RoundRobin
	SourceHash
	LeastConnections
)

// Keys gives the keys of all frontends, sorted.
func (p *Plan) Keys() []Key {
	keys := make([]Key, 0, len(p.Frontends))
	for k := range p.Frontends {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

var nodePortStar = map[model.Family]string{model.IPv4: "*4", model.IPv6: "*6"}
