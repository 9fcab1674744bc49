// Package abi defines version 2 of the plugin ABI: the values that host and guest exchange, and their wire form. Both
// sides use it. It imports the standard library only. ../ABI.md is the contract.
package abi

// Version of the ABI. Minor versions only append: fields, records, needs and kinds of keys. A host refuses a guest of another
// major version.
const (
	Major = 2
	Minor = 1
)

// Pools: the two sets of endpoints of a Service port, each decided separately.
const (
	PoolCluster = 0 // every endpoint
	PoolLocal   = 1 // endpoints on this node, for traffic policy Local
)

// AllNeeds: inputs that cost the host something, asked for by sluice_needs. See also Keys.
const (
	NeedConnections = 1 << 0 // Endpoint.Connections, Request.ConnectionsAgeMS
	NeedOutcomes    = 1 << 1 // Endpoint.Outcomes, Request.OutcomesWindowMS
	NeedNodes       = 1 << 2 // Zone.Nodes, Zone.MilliCPU, Request.NodeIndex, Request.NodeCount
	NeedPodNames    = 1 << 3 // Endpoint.Pod
	// NeedEndpointState asks for Request.EndpointStates: the host keeps Response.EndpointStates.
	NeedEndpointState = 1 << 4

	AllNeeds = NeedConnections | NeedOutcomes | NeedNodes | NeedPodNames | NeedEndpointState // all that are defined
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
	Eligible    = 1 << 7 // may get weight; the host ignores weight for any other endpoint
	Held        = 1 << 8 // eligible only because the policy's panic hold is in force
)

// Role is what a plugin decides: a chain is in the order of roles.
type Role uint8

// The roles. Plugins of the first two write the capacity of endpoints, Reset writes neither, the others write shares.
const (
	RoleExclude  Role = 1 // which endpoints get no connections at all, such as those that fail
	RoleReduce   Role = 2 // how much of an endpoint there is: warming up, draining, or of another size
	RoleShare    Role = 3 // parts of the connections for groups of endpoints; for plugins that declare no other role
	RoleLocality Role = 4 // between zones, nodes or priorities, within each group
	RolePick     Role = 5 // which of these endpoints this node uses, and how one is picked for a client
	RoleReset    Role = 6 // which established connections are reset; nothing about new ones
	RoleAdjust   Role = 7 // corrections of the shares by what this node observes
)

// WritesCapacity reports whether the values of results are capacities. Otherwise they are shares.
func (r Role) WritesCapacity() bool { return r == RoleExclude || r == RoleReduce }

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
	MaxStateLen      = 1024    // bytes of state a plugin may keep for a Service port and pool
	MaxEndpointState = 32      // and for each endpoint
	MaxCounters      = 4       // of a plugin, named in its manifest
	One              = 1000000 // the capacity of an ordinary endpoint, and its share before any plugin
	MaxGroups        = 64      // groups of a response
	MaxReasonsLen    = 4096    // bytes of all reasons of a response together
	MaxShedPermille  = 1000    // ShedPermille is 0 to this
)

// MaxTotal bounds the sum of the weights in the data plane: nftables represents as many exactly.
const MaxTotal = 1000

// Values that mean "none".
const (
	NoWeight           = -1         // PriorWeight: this chain has not decided the endpoint yet
	ConnectionsUnknown = 0xFFFFFFFF // Connections
	NoAge              = 0xFFFFFFFF // ConnectionsAgeMS: connections are not counted
	NoIndex            = 0xFFFFFFFF // NodeIndex: unknown
	NoSettings         = 0xFFFFFFFF // settings handle of a plugin without settings
	NeverReset         = 0xFFFFFFFF // ResetAfterMS
	NoTime             = 0          // ReadySince, TerminatingSince: not ready, not terminating
	NoString           = 0xFFFFFFFF // string id of the empty string
	AbsentString       = 0xFFFFFFFE // string id of a value that the object does not have
	NoReasonIndex      = 0xFFFF     // a result without a reason
)
