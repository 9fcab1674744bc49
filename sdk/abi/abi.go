// Package abi defines version 1 of the plugin ABI: the values that host and guest exchange, and their wire form. Both
// sides use it. It imports the standard library only.
package abi

import (
	"net/netip"
	"slices"
	"time"
)

// Version of the ABI. A guest of another major version is refused at load. Minor versions only append fields and needs.
//
//	1.0  first version
//	1.1  NeedNodes: Nodes and CPU of zones on request only. Guests of 1.0 still get them without asking.
const (
	Major = 1
	Minor = 1
)

// Pools: the two sets of endpoints of a Service port, each decided separately.
const (
	PoolCluster = 0 // every eligible endpoint
	PoolLocal   = 1 // eligible endpoints on this node, for traffic policy Local
)

// AllNeeds: inputs that cost the host something, asked for by sluice_needs.
const (
	NeedConnections = 1 << 0 // reserved: Endpoint.Connections; hosts refuse a module that needs them
	NeedMetadata    = 1 << 1 // reserved: Endpoint.Metadata; likewise
	NeedNodes       = 1 << 2 // Zone.Nodes and Zone.MilliCPU

	AllNeeds = NeedConnections | NeedMetadata | NeedNodes // all that are defined
)

// Condition bits of an endpoint.
const (
	Ready       = 1 << 0
	Serving     = 1 << 1
	Terminating = 1 << 2
	Local       = 1 << 3 // on this node
	Chosen      = 1 << 4 // by the default rules
	HintedZone  = 1 << 5 // to this node's zone
	HintedNode  = 1 << 6 // to this node
)

// Load-balancing algorithms that a guest may request.
const (
	BalanceDefault          = 0
	BalanceRandom           = 1
	BalanceRoundRobin       = 2
	BalanceSourceHash       = 3
	BalanceLeastConnections = 4
)

// Flags of a result.
const FlagKeepDraining = 1 << 0 // keep the endpoint as a draining endpoint

// Limits of the wire form.
const (
	MaxStateLen   = 1024  // bytes of state a plugin may keep for a Service port and pool
	MaxWeight     = 65535 // weights are 0 to this; 0: no new connections
	MaxReasonsLen = 4096  // bytes of all reasons of a response together
)

// Values that mean "none".
const (
	NoWeight           = -1         // PriorWeight: this chain has not decided the endpoint yet
	ConnectionsUnknown = 0xFFFFFFFF // Connections
	NeverReset         = 0xFFFFFFFF // ResetAfterMS
	NoTime             = 0          // ReadySince, TerminatingSince: not ready, not terminating
	NoString           = 0xFFFFFFFF // string id of the empty string
	NoReasonIndex      = 0xFFFFFFFF // a result without a reason
)

// Request describes a Service port and its eligible endpoints.
type Request struct {
	Now                 int64 // Unix milliseconds, a multiple of 1000; does not change if the wall clock is set
	Namespace           string
	Service             string
	Port                string // the port's name, "" when unnamed
	PortNumber          uint16
	Protocol            uint8 // IANA number: 6, 17, 132
	Family              uint8 // 4 or 6
	Pool                uint8 // PoolCluster or PoolLocal
	InternalPolicyLocal bool
	ExternalPolicyLocal bool
	SessionAffinityMS   int64  // session affinity timeout; 0: none
	Node                string // this node
	Zone                string // this node's zone, "" when unknown
	Zones               []Zone // sorted by name
	Endpoints           []Endpoint
	Generation          uint64 // increases with each change of the input for this Service port and pool
	State               []byte // what the plugin last returned for this Service port and pool, at most MaxStateLen
}

// Restricted returns the request that a plugin with these needs sees, without the inputs that it does not ask for. It
// shares unchanged parts with r.
func (r *Request) Restricted(needs uint32) *Request {
	out := *r
	if needs&NeedNodes == 0 {
		out.Zones = slices.Clone(r.Zones)
		for i := range out.Zones {
			out.Zones[i].Nodes, out.Zones[i].MilliCPU = 0, 0
		}
	}
	if needs&(NeedConnections|NeedMetadata) != NeedConnections|NeedMetadata {
		out.Endpoints = slices.Clone(r.Endpoints)
	}
	for i := range out.Endpoints {
		if needs&NeedConnections == 0 {
			out.Endpoints[i].Connections = ConnectionsUnknown
		}
		if needs&NeedMetadata == 0 {
			out.Endpoints[i].Metadata = ""
		}
	}
	return &out
}

// Zone is a row of the zone table, which contains the zone of this node, the zones of endpoints and, if a plugin of the
// chain has NeedNodes, the zones of Nodes.
type Zone struct {
	Name     string
	Nodes    uint32 // 0 unless NeedNodes
	Ready    uint32 // ready endpoints of this Service port in the zone
	MilliCPU uint64 // allocatable CPU of its Nodes; 0 unless NeedNodes
}

// Endpoint is an eligible endpoint; Request.Endpoints is sorted by address.
type Endpoint struct {
	Addr             netip.AddrPort
	Conditions       uint32 // Ready … HintedNode
	Node             string
	Zone             string
	Weight           uint32 // from the previous plugin of the chain, or the default rules
	PriorWeight      int32  // from the chain's last decision, or NoWeight
	ReadySince       int64  // Unix milliseconds, or NoTime
	TerminatingSince int64  // Unix milliseconds, or NoTime
	Connections      uint32 // established connections, or ConnectionsUnknown
	Metadata         string // labels and annotations of the Pod, one key=value per line
}

// Response is the decision on a Request. It can be reused: Reset keeps its memory.
type Response struct {
	RequeueAfter time.Duration // decide again after this long; 0: only on a change
	Balance      uint8
	State        []byte
	Results      []Result // one per Request.Endpoints, in the same order
}

// Result is the decision on one endpoint.
type Result struct {
	Weight       uint16
	Flags        uint32
	ResetAfterMS uint32 // established connections are reset this long from now, or NeverReset
	Reason       string // short and human-readable
}

// Reset prepares r for n endpoints: no requeue, default balance, no state, weight 0 and no connection reset.
func (r *Response) Reset(n int) {
	r.RequeueAfter, r.Balance, r.State = 0, BalanceDefault, r.State[:0]
	if cap(r.Results) < n {
		r.Results = make([]Result, n)
	}
	r.Results = r.Results[:n]
	for i := range r.Results {
		r.Results[i] = Result{ResetAfterMS: NeverReset}
	}
}
