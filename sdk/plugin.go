// Package sdk is for authors of sluice plugins in Go. A plugin is a type with two methods. It is unit-tested with go
// test (package sdktest) and built for the sandbox with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o NAME.wasm
//
// A plugin is a pure function: equal requests get equal responses, on every node and at every call. Its only clock is
// Request.Now, and its only memory between calls is the state that it returns with Response.SetState.
package sdk

import "github.com/sluice-proxy/sluice/sdk/abi"

// Plugin decides which endpoints of a Service port get new connections. A Plugin is used by one goroutine at a time. An instance
// of a module has one for each of its settings.
type Plugin interface {
	// Configure receives settings, a JSON object or nothing, before the first Decide. See ParseSettings.
	Configure(settings []byte) error
	// Decide fills in the response to a request. Endpoints for which it sets nothing keep their capacity and share. It must not
	// retain req or resp. After an error or a panic the host discards the plugin instance and keeps the last good
	// decision.
	Decide(req *Request, resp *Response) error
}

// Describer is implemented by a Plugin whose manifest the native tests know: Manifest returns the text of its file plugin.json,
// embedded. In the sandbox it is the module that has it, and the host says which role it is. Without the method, the role is
// RoleShare in native tests.
type Describer interface {
	Manifest() string
}

// Role is what a plugin decides. A chain is in the order of roles.
type Role = abi.Role

// The roles. Plugins with one of the first two set capacities, RoleReset sets neither, the others set shares.
const (
	RoleExclude  = abi.RoleExclude  // which endpoints get no connections at all, such as those that fail
	RoleReduce   = abi.RoleReduce   // how much of an endpoint there is: warming up, draining, or of another size
	RoleShare    = abi.RoleShare    // parts of the connections for groups of endpoints; for plugins without a Role
	RoleLocality = abi.RoleLocality // between zones, nodes or priorities, within each group
	RolePick     = abi.RolePick     // which of these endpoints this node uses, and how one is picked for a client
	RoleReset    = abi.RoleReset    // which established connections are reset; nothing about new ones
	RoleAdjust   = abi.RoleAdjust   // corrections of the shares by what this node observes
)

// One is the capacity of an ordinary endpoint, and its share before any plugin has set one.
const One = abi.One

// Needer is implemented by a Plugin that needs inputs which the host does not provide by default. Needs is called after Configure
// and must always return the same value for the same settings.
type Needer interface {
	Needs() Need
}

// Need is a set of inputs.
type Need uint32

// Inputs that a host provides on request only. A host that cannot provide one refuses to load the plugin.
const (
	// NeedConnections asks for Endpoint.Connections.
	NeedConnections Need = abi.NeedConnections
	// NeedOutcomes asks for Request.Outcomes and Request.TotalOutcomes: the data plane then counts what becomes of new
	// connections.
	NeedOutcomes Need = abi.NeedOutcomes
	// NeedNodes asks for Zone.Nodes, Zone.MilliCPU and Request.NodeIndex, for which the host lists all Nodes of the cluster.
	NeedNodes Need = abi.NeedNodes
	// NeedPodNames asks for Endpoint.Pod.
	NeedPodNames Need = abi.NeedPodNames
	// NeedEndpointState asks for Request.EndpointState: the host keeps what Response.SetEndpointState sets.
	NeedEndpointState Need = abi.NeedEndpointState
)

// Keyer is implemented by a Plugin that reads labels, annotations or resource requests of Pods, labels of Nodes, load that
// endpoints report, labels or annotations of Services, or labels of their namespaces. Keys is called after Configure and must
// always return the same keys for the same settings, at most 16. A value has the number of its key: Request.PodValue counts the
// keys of Pods, Nodes and load only, Request.ServiceValue the others only.
type Keyer interface {
	Keys() []string
}

// PodLabel returns the key of a label of the endpoint's Pod.
func PodLabel(name string) string { return abi.KeyPodLabel + name }

// PodAnnotation returns the key of an annotation of the endpoint's Pod.
func PodAnnotation(name string) string { return abi.KeyPodAnnotation + name }

// PodCPU is the key of the CPU that the containers of the endpoint's Pod request, in thousandths of a core, as a decimal number.
const PodCPU = abi.KeyPodCPU

// NodeLabel returns the key of a label of the endpoint's Node.
func NodeLabel(name string) string { return abi.KeyNodeLabel + name }

// ServiceLabel returns the key of a label of the Service.
func ServiceLabel(name string) string { return abi.KeyServiceLabel + name }

// ServiceAnnotation returns the key of an annotation of the Service.
func ServiceAnnotation(name string) string { return abi.KeyServiceAnnotation + name }

// NamespaceLabel returns the key of a label of the Service's namespace.
func NamespaceLabel(name string) string { return abi.KeyNamespaceLabel + name }

// Load returns the key of load that endpoints report: a number of their ORCA reports, such as application_utilization,
// rps_fractional or utilization/NAME, as a decimal text of few digits. It is absent while an endpoint reports none.
func Load(field string) string { return abi.KeyLoad + field }

// Register sets the constructor of the plugin that this module exports. Call it from an init function of package main and
// leave main empty: the host calls a module's exports, never its main. Outside the sandbox it does nothing.
func Register(newPlugin func() Plugin) { register(newPlugin) }

// Log writes a line to the host's log at level info, for debugging; the host limits length and rate. To explain a
// decision to users, set reasons instead. Outside the sandbox it does nothing.
func Log(text string) { writeLog(levelInfo, text) }
