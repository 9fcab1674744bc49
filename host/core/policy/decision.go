package policy

import (
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// PoolKey identifies a pool: the endpoints for cluster or local traffic of a Service port in one family. Each pool has its own
// decision.
type PoolKey struct {
	Port   model.PortName
	Family model.Family
	Pool   uint8 // abi.PoolCluster or abi.PoolLocal
}

func keyOf(in *Input) PoolKey { return PoolKey{in.Port.Name, in.Port.Family, in.Pool} }

// String returns a human-readable name.
func (k PoolKey) String() string {
	pool := "cluster pool"
	if k.Pool == abi.PoolLocal {
		pool = "local pool"
	}
	return fmt.Sprintf("%s/%s %s %s", k.Port, k.Port.Protocol, k.Family, pool)
}

// Input is the input of a decision.
type Input struct {
	Service *model.Service
	Port    *eligibility.Port
	Pool    uint8      // abi.PoolCluster or abi.PoolLocal
	Node    string     // this node
	Zone    string     // of this node, "" when unknown
	Zones   []abi.Zone // all zones of Nodes, sorted by name; Ready is ignored
	// NodesUnknown reports that not all Nodes of the cluster have been read. Plugins that need them are not called.
	NodesUnknown bool
	// NodeIndex and NodeCount are those of abi.Request; NodeCount is 0 if NodesUnknown.
	NodeIndex, NodeCount uint32
	Pods                 Pods
	Labels               Labels
}

// Labels are the labels of Nodes and of the Service's namespace, and the load that its endpoints report. Plugins that declare
// keys that have not been read wait for them.
type Labels struct {
	Nodes                     map[string]*model.Node // read-only
	Namespace                 *model.Namespace       // nil: it has none of the labels
	NodesRead, NamespacesRead model.LabelsRead
	Load                      map[netip.Addr]map[string]string
	LoadRead                  model.LabelsRead
}

// LabelsOf returns the labels and the load that the policy of a Service may see.
func LabelsOf(c *model.Snapshot, service model.Name) Labels {
	l := Labels{Nodes: c.Nodes, Namespace: c.Namespaces[service.Namespace], NodesRead: c.NodeLabels, NamespacesRead: c.NamespaceLabels, LoadRead: c.LoadRead}
	if load := c.Loads[service]; load != nil {
		l.Load = load.Values
	}
	return l
}

// Pods are what is known of Pods.
type Pods struct {
	All     map[model.Name]*model.Pod // of all Services; read-only
	Pending bool                      // those of the Service have not been read. Plugins that declare keys of Pods wait for them
}

// Decision is the decision about a pool. All slices are parallel to Input.Port.Endpoints.
type Decision struct {
	Weights      []uint16
	ResetAt      []int64 // when established connections are reset, Unix milliseconds; 0: never. Nil: all 0
	KeepDraining []bool  // stays in the pool as a draining endpoint. Nil: all false
	Balance      uint8   // abi.Balance…
	Refused      uint16  // the weight of connections that are refused, beside those of the endpoints. Set by the planner, for a route
	Sheds        []Shed  // of established connections. Nil: none
	Origin       Origin
	Policy       string // name, "" for none
	Evaluation
	Shadow *Shadow // nil: the policy has none
	Hold   *Hold   // the policy's panic hold; nil: it has none. Set by the planner
	// Without is what would be decided without the policy; nil: it has no guard.
	Without *Without
}

// Evaluation is what has come of evaluating a chain.
type Evaluation struct {
	Err     error
	Steps   []StepResult // answers of the plugins, up to the first that failed
	Pending *Pending     // the chain is waiting for a plugin; nil: it is not
}

// Pending is the call that a decision waits for. Until its answer the previous decision stays in force.
type Pending struct {
	Plugin string
	Since  int64 // Unix milliseconds
}

// Origin is where a decision comes from.
type Origin uint8

// The origins of a decision.
const (
	FromDefault  Origin = iota // default rules: no policy, one that only has a shadow, no eligible endpoint, or a failure without a last good decision
	FromChain                  // the chain's answer
	FromLastGood               // the chain's last good answer, because the chain fails
)

func (o Origin) String() string { return [...]string{"default", "policy", "last good"}[o] }

// StepResult is one plugin's answer.
type StepResult struct {
	Plugin  string
	Role    abi.Role   // which says what Answer.Values are; 0: unknown
	Answer  abi.Answer // parallel to Input.Port.Endpoints; read-only
	Reasons Reasons    // parallel to Answer.Values
	Err     error
}
