package scenariotest

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Cluster is what a scenario has set: the input of an Engine.
type Cluster struct {
	Settings    string   // of the plugin, compact JSON; "" for none
	Chain       []Plugin // plugins of the policy, in order; none: one plugin without a name, with Settings
	IgnoreHints bool     // of the policy
	UseDefault  bool     // of the policy: onFailure: Default
	Service     Service
	Nodes       []Node // the first is the one that decides
	Endpoints   []Endpoint
	// CountedAt is when Endpoint.Connections were counted; the zero Time: they are not.
	CountedAt time.Time
}

// Plugin is a plugin of a chain.
type Plugin struct{ Name, Settings string }

// Service is the Service, with one port.
type Service struct {
	Namespace, Name              string
	Port                         string // name, "" for none
	Number                       uint16
	Protocol, Family             uint8 // as in abi.Request
	Affinity                     time.Duration
	InternalLocal, ExternalLocal bool // traffic policies; ExternalLocal counts because the Service has a NodePort
	Labels, Annotations          map[string]string
	NamespaceLabels              map[string]string
}

// Node is a Node.
type Node struct {
	Name, Zone string
	MilliCPU   uint64
	Ready      bool
	Labels     map[string]string
}

// Endpoint is an endpoint and its Pod.
type Endpoint struct {
	Name                        string // of the Pod
	Addr                        netip.AddrPort
	Node, Zone                  string
	Ready, Serving, Terminating bool
	ZoneHints, NodeHints        []string
	Labels, Annotations         map[string]string
	MilliCPU                    int64             // requested
	Load                        map[string]string // that it reports, by field
	Connections                 uint32
	Responds                    scenario.Response
	Counters                    Counters
	credit                      float64 // connections due to it, below 1
}

// Counters count the connections from this node to an endpoint since there is traffic, or since the endpoint exists.
type Counters struct{ Attempts, Answered, Refused uint64 }

// endpoint returns the endpoint with a name, nil if there is none.
func (c *Cluster) endpoint(name string) *Endpoint {
	for i := range c.Endpoints {
		if c.Endpoints[i].Name == name {
			return &c.Endpoints[i]
		}
	}
	return nil
}

func (c *Cluster) node(name string) *Node {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i]
		}
	}
	return nil
}
