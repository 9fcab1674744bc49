package api

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Explanation is the output of `sluice explain -o json`.
type Explanation struct {
	Service string `json:"service"`
	// NodeName and Zone are those of the node that the plan is for; without a zone it follows no hints for zones.
	NodeName string `json:"nodeName"`
	Zone     string `json:"zone,omitempty"`
	// At is the time that plugins see; nil: the present time.
	At *time.Time `json:"at,omitempty"`
	// NodeWarnings is what the node's Node lacks, and what applies instead.
	NodeWarnings []string `json:"nodeWarnings,omitempty"`
	Policy       string   `json:"policy,omitempty"`
	Preset       string   `json:"preset,omitempty"` // that Plugins are from
	Plugins      []string `json:"plugins,omitempty"`
	// Ports is what gives the ports their policies, or would, if objects of the cluster are among it.
	Ports []PortPolicy `json:"ports,omitempty"`
	// Revision identifies what the policy answers with; "": not known, because a plugin is not loaded, or no policy.
	Revision string `json:"revision,omitempty"`
	// Annotation is that of the Service that names its policy; nil: none.
	Annotation *Annotation `json:"annotation,omitempty"`
	// Nodes is why bindings for some of the nodes apply on this node or not.
	Nodes  []string `json:"nodes,omitempty"`
	Shadow *Shadow  `json:"shadow,omitempty"` // nil: the policy has none
	Error  string   `json:"error,omitempty"`
	// Guards are the guards of the policies that apply to the Service, or would if their guards let them.
	Guards []Guard `json:"guards,omitempty"`
	// Settings are those that the Service sets by its annotation; nil: none.
	Settings *Settings `json:"settings,omitempty"`
	// Pods is whether the Pods of the Service have been read, if a plugin declares keys of Pods: pending, read or unavailable.
	Pods      string   `json:"pods,omitempty"`
	Frontends []string `json:"frontends"`
	// Connections is what the Service asks for its connections beyond the default: session affinity, and what annotations say.
	Connections []string `json:"connections,omitempty"`
	Contested   []string `json:"contested,omitempty"` // frontends that another Service has
	// LosingRoutes are routes of ports that an older route has.
	LosingRoutes []string `json:"losingRoutes,omitempty"`
	Omitted      []string `json:"omitted,omitempty"` // what is left out because of limits or addresses
	// Unrestricted are frontends to which the Service's loadBalancerSourceRanges do not apply, each with the reason.
	Unrestricted []string `json:"unrestricted,omitempty"`
	// Ignored are external IPs that are not served because of externalIPs: Ignore.
	Ignored []string `json:"ignoredExternalIPs,omitempty"`
	// WithoutPort are endpoints that a port does not reach, because their EndpointSlices do not have it; see AddWithoutPort.
	WithoutPort []string `json:"withoutPort,omitempty"`
	// Degraded are frontends that the backend can represent only approximately, Unprogrammed those that the kernel has rejected.
	Degraded     []string `json:"degraded,omitempty"`
	Unprogrammed []string `json:"unprogrammed,omitempty"`
	Node         *Node    `json:"node,omitempty"` // what of the configuration is in force
	Pools        []Pool   `json:"pools"`
	// Requests are those that AddRequests adds.
	Requests []Request `json:"requests,omitempty"`
}

// PortPolicy is what gives ports their policy, in the order of precedence.
type PortPolicy struct {
	Ports      []string    `json:"ports"` // names, or numbers of those without one
	Candidates []Candidate `json:"candidates"`
}

// Candidate is a policy for a port, and its layer of precedence.
type Candidate struct {
	Layer  string `json:"layer"`
	Policy string `json:"policy"`
	State  string `json:"state"`         // applies, shadow, hidden, not on this node, passed over by its guard
	Why    string `json:"why,omitempty"` // of not on this node
}

// Annotation is the annotation of a Service that names its policy.
type Annotation struct {
	Policy string `json:"policy"`
	Error  string `json:"error,omitempty"` // why it chooses no policy, and what is in force instead
}

// Settings are settings that a Service sets.
type Settings struct {
	Annotation string `json:"annotation"`
	Error      string `json:"error,omitempty"` // why the annotation is not in force
	// InForce are the settings of each plugin, with those of the policy, by name.
	InForce []PluginSettings `json:"inForce,omitempty"`
}

// Guard is the guard of a policy.
type Guard struct {
	Policy   string      `json:"policy"`
	State    string      `json:"state"`           // baseline, in force or fallen back
	Since    *time.Time  `json:"since,omitempty"` // nil: in another boot, or before a plugin of the policy is loaded
	Blind    bool        `json:"blind,omitempty"` // nothing is known of connections: the state does not change
	Baseline GuardCounts `json:"baseline"`        // connections under the policies that apply without this one
	Recent   GuardCounts `json:"recent"`          // in the last window, or in the one that was the reason to fall back
	Text     string      `json:"text"`
}

// PluginSettings are the settings of a plugin.
type PluginSettings struct {
	Plugin   string `json:"plugin"`
	Settings string `json:"settings"` // JSON
}

// Pool is the endpoints of a Service port in one family, for traffic from the cluster or for traffic that must stay on the
// node.
type Pool struct {
	Port     string `json:"port"`
	Number   uint16 `json:"number"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Pool     string `json:"pool"` // cluster or local
	Topology string `json:"topology"`
	// HintsIgnored is why topology hints of the endpoints are not followed; "": they are, or there are none.
	HintsIgnored string      `json:"hintsIgnored,omitempty"`
	DecidedBy    string      `json:"decidedBy"`
	Balance      string      `json:"balance,omitempty"`     // how a plugin wants connections to be balanced; "": as the default rules do, at random
	TrafficHint  string      `json:"trafficHint,omitempty"` // of the policy
	Pending      *Pending    `json:"pending,omitempty"`
	Shadow       *PoolShadow `json:"shadow,omitempty"`
	Panic        *Panic      `json:"panic,omitempty"`  // of a policy with panic
	Unheld       []string    `json:"unheld,omitempty"` // groups of endpoints that get another part than a plugin wants: wanted, and got
	Endpoints    []Endpoint  `json:"endpoints"`
	Inputs       []Input     `json:"inputs,omitempty"` // of each plugin that has answered, then of those of the shadow
	Route        *Route      `json:"route,omitempty"`  // that splits the connections over other Services; nil: none
}

// Route is how a TCPRoute or UDPRoute splits the connections of a pool.
type Route struct {
	Kind     string         `json:"kind"`
	Name     string         `json:"name"` // with the namespace
	Backends []RouteBackend `json:"backends"`
}

// RouteBackend is a backend of a route.
type RouteBackend struct {
	Service string  `json:"service"` // of the namespace of the route
	Port    uint16  `json:"port"`
	Weight  uint32  `json:"weight"`
	Wanted  float64 `json:"wanted"` // of all connections, 0 to 1
	Held    float64 `json:"held"`   // as the weights of the endpoints have it
	// Refused: its connections are refused. LeftOut: it has endpoints on other nodes only, and the others get its share.
	Refused bool   `json:"refused,omitempty"`
	LeftOut bool   `json:"leftOut,omitempty"`
	Why     string `json:"why,omitempty"` // it has no endpoints
}

// Text is the backend with its share.
func (b *RouteBackend) Text() string {
	text := fmt.Sprintf("%s:%d weight %d, %.1f %%", b.Service, b.Port, b.Weight, 100*b.Held)
	if math.Abs(b.Held-b.Wanted) > 0.0005 {
		text += fmt.Sprintf(" (wanted %.1f %%)", 100*b.Wanted)
	}
	switch {
	case b.Refused && b.Why != "":
		text += ", refused: " + b.Why
	case b.Refused:
		text += ", refused: no endpoint can serve"
	case b.LeftOut:
		text += ": no endpoint on this node, the others get its share"
	case b.Why != "":
		text += ": " + b.Why
	}
	return text
}

// Pending is the plugin call that a decision waits for.
type Pending struct {
	Plugin         string     `json:"plugin"`
	Since          time.Time  `json:"since"`
	ThrottledSince *time.Time `json:"throttledSince,omitempty"` // the plugin has used up its share of CPU time
}

// Panic is the panic hold of a pool.
type Panic struct {
	Panicking bool   `json:"panicking"` // fewer than Below percent of the endpoints that do not terminate are ready
	Ready     int    `json:"ready"`
	Total     int    `json:"total"`
	Held      int    `json:"held"` // endpoints that count as ready although they are not
	Below     int    `json:"below"`
	Hold      string `json:"hold"`
	// OutcomesCounted: held endpoints are those to which connections from this node do not fail. Otherwise that is not known.
	OutcomesCounted bool `json:"outcomesCounted"`
}

// Endpoint is an endpoint in a pool, with its weight and the reasons for it.
type Endpoint struct {
	Address  string          `json:"address"`
	Pod      string          `json:"pod,omitempty"`
	Node     string          `json:"node,omitempty"`
	Zone     string          `json:"zone,omitempty"`
	Eligible bool            `json:"eligible"`
	Why      string          `json:"why"`
	Default  uint16          `json:"default"` // weight by the default rules
	Steps    []Step          `json:"steps,omitempty"`
	Shadow   *EndpointShadow `json:"shadow,omitempty"` // nil: the policy has no shadow, or it has no decision
	Weight   uint16          `json:"weight"`
	Share    float64         `json:"share"` // of new connections, 0 to 1: the kernel's if Kernel is known and the explanation is of the sluice that runs
	ResetAt  *time.Time      `json:"resetAt,omitempty"`
	Shed     *Shed           `json:"shed,omitempty"` // of its established connections
	// HeldUntil is until when a panic hold makes the endpoint count as ready.
	HeldUntil *time.Time    `json:"heldUntil,omitempty"`
	Kernel    []KernelShare `json:"kernel,omitempty"`
	// Backend is the Service that the endpoint is from, if a route splits the connections.
	Backend string `json:"backend,omitempty"`
}

// Shed is that part of an endpoint's established connections is reset over a minute.
type Shed struct {
	Permille uint16 `json:"permille"`
	// Wanted is what the plugin asks for. It is more than Permille if maxShedPercentPerSecond of the policy bounds it.
	Wanted uint16     `json:"wanted"`
	Since  *time.Time `json:"since,omitempty"` // nil: in another boot
}

// Step is the decision of one plugin on an endpoint. By its role, it has a capacity, a share, or neither; 1 is that of an
// ordinary endpoint.
type Step struct {
	Plugin   string   `json:"plugin"`
	Role     string   `json:"role,omitempty"`
	Capacity *float64 `json:"capacity,omitempty"`
	Share    *float64 `json:"share,omitempty"` // of the connections of its group, for each unit of capacity
	Part     *float64 `json:"part,omitempty"`  // of all connections for its group, 0 to 1; nil: the plugin sets no groups
	Reason   string   `json:"reason,omitempty"`
}

// Value is what the plugin has set, as text: a capacity, or a share of the part of its group; "-" for neither.
func (s *Step) Value() string {
	switch {
	case s.Capacity != nil:
		return Number(*s.Capacity)
	case s.Share == nil:
		return "-"
	case s.Part != nil:
		return fmt.Sprintf("%s of %s %%", Number(*s.Share), Number(100**s.Part))
	}
	return Number(*s.Share)
}

// Number is a number with up to three digits after the point.
func Number(v float64) string { return strconv.FormatFloat(math.Round(1000*v)/1000, 'f', -1, 64) }

// KernelShare is the weight of an endpoint behind a frontend, as it is programmed in the kernel.
type KernelShare struct {
	Frontend string `json:"frontend"`
	Weight   uint16 `json:"weight"`
	Total    int    `json:"total"`
	// Connections through the frontend; nil except in mode ipvs.
	Connections *Connections `json:"connections,omitempty"`
}

// GuardCounts are numbers of connections.
type GuardCounts struct {
	Connections uint64 `json:"connections"`
	Failed      uint64 `json:"failed"` // of them: refused or unanswered
}

// Values of Explanation.Pods that need attention.
const (
	PodsPending     = "pending"
	PodsUnavailable = "unavailable"
)

// FallenBack is the Guard.State of a policy that is not in force because connections failed.
const FallenBack = "fallen back"
