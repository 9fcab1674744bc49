// Package abi is version 1 of the plugin ABI: the values that host and guest exchange, and their wire form. It uses
// the standard library only, and is the single source of truth for both sides.
package abi

import (
	"net/netip"
	"slices"
	"time"
)

// Version of the ABI: guests of another major are refused at load; minors only append fields, and needs.
//
//	1.0  the first
//	1.1  NeedNodes: what a zone has of Nodes is given where it is asked for. Guests of 1.0 got it unasked, and still do.
const (
	Major = 1
	Minor = 1
)

// Pool says which list of a Service port is being decided.
const (
	PoolCluster = 0 // every eligible endpoint
	PoolLocal   = 1 // those on this node, for traffic policy Local
)

// AllNeeds: inputs that cost the host something, asked for by sluice_needs.
const (
	NeedConnections = 1 << 0 // reserved: Endpoint.Connections; a module that needs them is refused
	NeedMetadata    = 1 << 1 // reserved: Endpoint.Metadata; the same
	NeedNodes       = 1 << 2 // Zone.Nodes and Zone.MilliCPU

	AllNeeds = NeedConnections | NeedMetadata | NeedNodes // all of them
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

// Ways to balance, as a guest asks for them; 0 leaves the host's default.
const (
	BalanceDefault          = 0
	BalanceRandom           = 1
	BalanceRoundRobin       = 2
	BalanceSourceHash       = 3
	BalanceLeastConnections = 4
)

// Flags of an answer.
const FlagKeepDraining = 1 << 0 // keep the endpoint as a draining member

// Limits of the wire form.
const (
	MaxStateLen   = 1024  // bytes of state a plugin may keep for a Service port and pool
	MaxWeight     = 65535 // weights are 0 to this; 0 takes no new connections
	MaxReasonsLen = 4096  // bytes of reasons in an answer
)

// Values that mean "none".
const (
	NoWeight           = -1         // PriorWeight: this chain has not answered for the endpoint yet
	ConnectionsUnknown = 0xFFFFFFFF // Connections
	NeverReset         = 0xFFFFFFFF // ResetAfterMS
	NoTime             = 0          // ReadySince, TerminatingSince: not (yet) so
	NoString           = 0xFFFFFFFF // id of no string: metadata of an endpoint that has none
	NoReasonIndex      = 0xFFFFFFFF // an answer without a reason
)

// Request is one question: what should the endpoints of this Service port get?
type Request struct {
	Now                 int64 // Unix milliseconds, a multiple of 1000
	Namespace           string
	Service             string
	Port                string // the port's name, "" when unnamed
	PortNumber          uint16
	Protocol            uint8 // IANA number: 6, 17, 132
	Family              uint8 // 4 or 6
	Pool                uint8 // PoolCluster or PoolLocal
	InternalPolicyLocal bool
	ExternalPolicyLocal bool
	SessionAffinityMS   int64  // session affinity time-out; 0: none
	Node                string // this node
	Zone                string // this node's zone, "" when unknown
	Zones               []Zone // sorted by name
	Endpoints           []Endpoint
	Generation          uint64 // rises each time the input of this Service port and pool changes
	State               []byte // what the plugin returned last for this Service port and pool, at most MaxStateLen
}

// Restricted is the request as a plugin with these needs gets it: without what it does not ask for. It shares with r what
// is in both.
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

// Zone is a row of the zone table: this node's zone, those that endpoints of the Service name and, where a plugin of the
// chain has NeedNodes, those that Nodes name.
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
	Weight           uint32 // from the plugin before in the chain, or the default rules
	PriorWeight      int32  // the chain's last answer, or NoWeight
	ReadySince       int64  // Unix milliseconds, or NoTime
	TerminatingSince int64  // Unix milliseconds, or NoTime
	Connections      uint32 // established now, or ConnectionsUnknown
	Metadata         string // labels and annotations of the Pod, one key=value a line; "" for none
}

// Response answers a Request. A Response is reused from call to call: Reset keeps its memory.
type Response struct {
	RequeueAfter time.Duration // ask again after this long; 0: only on a change
	Balance      uint8
	State        []byte
	Results      []Result // one for each of Request.Endpoints, in the same order
}

// Result is what one endpoint gets.
type Result struct {
	Weight       uint16
	Flags        uint32
	ResetAfterMS uint32 // established connections are reset this long from now, or NeverReset
	Reason       string // a short text for people
}

// Reset makes r ready for n endpoints: no requeue, default balance, no state, every weight 0 and never reset.
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
