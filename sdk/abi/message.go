//go:build !wasip1

package abi

import (
	"net/netip"
	"time"
)

// Request describes a Service port and its endpoints. Its JSON form is that of sdk/fixture.
type Request struct {
	Now                 int64      `json:"now"` // Unix milliseconds, a multiple of 1000; does not change if the wall clock is set
	Namespace           string     `json:"namespace"`
	Service             string     `json:"service"`
	Port                string     `json:"port"` // the port's name, "" when unnamed
	PortNumber          uint16     `json:"portNumber"`
	Protocol            uint8      `json:"protocol"` // IANA number: 6, 17, 132
	Family              uint8      `json:"family"`   // 4 or 6
	Pool                uint8      `json:"pool"`     // PoolCluster or PoolLocal
	InternalPolicyLocal bool       `json:"internalPolicyLocal"`
	ExternalPolicyLocal bool       `json:"externalPolicyLocal"`
	SessionAffinityMS   int64      `json:"sessionAffinityMS"` // session affinity timeout; 0: none
	Node                string     `json:"node"`              // this node
	NodeIndex           uint32     `json:"nodeIndex"`         // position of this node among the names of the Nodes that are ready, sorted; NoIndex: unknown
	NodeCount           uint32     `json:"nodeCount"`         // Nodes that are ready; 0: unknown
	Zone                string     `json:"zone"`              // this node's zone, "" when unknown
	Zones               []Zone     `json:"zones"`             // sorted by name
	Endpoints           []Endpoint `json:"endpoints"`
	// Groups are the parts of the new connections that groups of endpoints get, of any sum. Empty: one group has all.
	Groups           []uint32 `json:"groups,omitempty"`
	ConnectionsAgeMS uint32   `json:"connectionsAgeMS"` // age of Endpoint.Connections; NoAge: not counted
	OutcomesWindowMS uint32   `json:"outcomesWindowMS"` // length of the last window of Endpoint.Outcomes; 0: not counted
	Keys             []string `json:"keys"`             // declared by the plugins of the chain, see ParseKeys
	ServiceValues    []Value  `json:"serviceValues"`    // of the Service keys among Keys, in their order
	Generation       uint64   `json:"generation"`       // increases with each change of the input for this Service port and pool
	State            []byte   `json:"state"`            // what the plugin last returned for this Service port and pool, at most MaxStateLen
	// EndpointStates is what the plugin last returned for Endpoints, MaxEndpointState bytes for each; empty: nothing.
	EndpointStates []byte `json:"endpointStates,omitempty"`

	Settings Settings `json:"-"`
}

// Zone is a row of the zone table, which contains the zone of this node, the zones of endpoints and, if a plugin of the
// chain has NeedNodes, the zones of Nodes.
type Zone struct {
	Name     string `json:"name"`
	Nodes    uint32 `json:"nodes"`    // 0 unless NeedNodes
	Ready    uint32 `json:"ready"`    // ready endpoints of this Service port in the zone
	Serving  uint32 `json:"serving"`  // serving endpoints, ready or not
	Total    uint32 `json:"total"`    // all endpoints
	MilliCPU uint64 `json:"milliCPU"` // allocatable CPU of its Nodes; 0 unless NeedNodes
}

// Endpoint is an endpoint of the Service port in this pool, eligible or not; Request.Endpoints is sorted by address.
type Endpoint struct {
	Addr             netip.AddrPort `json:"addr"`
	Conditions       uint32         `json:"conditions"` // Ready … Held
	Node             string         `json:"node"`
	Zone             string         `json:"zone"`
	Pod              string         `json:"pod"`              // name, "" when unknown or unless NeedPodNames
	Capacity         uint32         `json:"capacity"`         // how much of an endpoint this is, in millionths: from the previous plugin of the chain, or One if the default rules use it
	Share            uint32         `json:"share"`            // of the connections of its group, for each unit of capacity, of any sum: from the previous plugin, or One if its topology hints are for this node
	Group            uint16         `json:"group,omitempty"`  // in Request.Groups
	PriorWeight      int32          `json:"priorWeight"`      // from the chain's last decision, or NoWeight
	ReadySince       int64          `json:"readySince"`       // Unix milliseconds, or NoTime
	TerminatingSince int64          `json:"terminatingSince"` // Unix milliseconds, or NoTime
	Connections      uint32         `json:"connections"`      // established connections from this node, or ConnectionsUnknown
	Values           []Value        `json:"values"`           // of the Pod keys among Request.Keys, in their order; missing ones are absent
	Outcomes         Outcomes       `json:"outcomes"`
}

// Value is the value of a declared key.
type Value struct {
	Text    string `json:"text"`
	Present bool   `json:"present"` // false: the object does not have it, and Text is ""
}

// Outcomes counts connections that this node has sent to an endpoint.
type Outcomes struct {
	// In the last Request.OutcomesWindowMS. Only attempts older than a second can be unanswered.
	Attempts   uint32 `json:"attempts"`
	Answered   uint32 `json:"answered"`
	Refused    uint32 `json:"refused"`
	Unanswered uint32 `json:"unanswered"`
	// Since Since, and only as long as the node watches the endpoint.
	TotalAttempts   uint64 `json:"totalAttempts"`
	TotalAnswered   uint64 `json:"totalAnswered"`
	TotalRefused    uint64 `json:"totalRefused"`
	TotalUnanswered uint64 `json:"totalUnanswered"`
	Since           int64  `json:"since"` // Unix milliseconds
}

// Response is the decision on a Request. It can be reused: Reset keeps its memory.
type Response struct {
	RequeueAfter time.Duration // decide again after this long; 0: only on a change
	Balance      uint8
	State        []byte
	Results      []Result // one per Request.Endpoints, in the same order
	Groups       []uint32 // by RoleShare: the parts of groups; empty: those of the request
	// EndpointStates are MaxEndpointState bytes for each endpoint; empty: none.
	EndpointStates []byte
	// Counters is by how much the counters of the manifest grow, in their order.
	Counters [MaxCounters]uint32
}

// Result is the decision on one endpoint.
type Result struct {
	Value        uint32 // the endpoint's capacity (RoleExclude, RoleReduce) or its share
	Group        uint16 // in Response.Groups
	ShedPermille uint16 // part of the established connections that is reset over the next minute, in thousandths; 0: none
	Flags        uint32
	ResetAfterMS uint32 // established connections are reset this long from now, or NeverReset
	Reason       string // short and human-readable
}

// Reset prepares r for n endpoints: no requeue, default balance, no state, no groups, value 0, and no connections reset or shed.
func (r *Response) Reset(n int) {
	r.RequeueAfter, r.Balance, r.State, r.Groups = 0, BalanceDefault, r.State[:0], r.Groups[:0]
	r.EndpointStates, r.Counters = r.EndpointStates[:0], [MaxCounters]uint32{}
	if cap(r.Results) < n {
		r.Results = make([]Result, n)
	}
	r.Results = r.Results[:n]
	for i := range r.Results {
		r.Results[i] = Result{ResetAfterMS: NeverReset}
	}
}
