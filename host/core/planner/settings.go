package planner

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Planning is the part of a configuration that a Planner takes as it is, with the names and tags of host/node/config.
type Planning struct {
	// BindAddress overrides the Node's first address in its family; the zero value does not.
	BindAddress netip.Addr `json:"bindAddress"`
	// MasqueradeAll masquerades every ClusterIP connection.
	MasqueradeAll bool `json:"masqueradeAll"`
	// NoMasqueradeCIDRs are endpoints' addresses to which connections keep their source (KEP-6246). Need not be sorted.
	NoMasqueradeCIDRs []netip.Prefix `json:"noMasqueradeCIDRs"`
	ServiceLimits     Limits         `json:"serviceLimits"`
	// EndpointCIDRs are exceptions from the addresses that may not be endpoints, see eligibility.EndpointRules.
	EndpointCIDRs []netip.Prefix `json:"endpointCIDRs"`
	// ExternalIPs is whether Services are served at their external IPs.
	ExternalIPs ExternalIPs `json:"externalIPs"`
}

// Settings is the configuration of a Planner.
type Settings struct {
	Planning
	Node           string         // this node's name
	MasqueradeMark uint32         // see plan.Global
	PodSources     []netip.Prefix // see plan.Global; need not be sorted
	PodInterfaces  []string       // see plan.Global; need not be sorted
	// PodsOfNode uses the Node's spec.podCIDRs instead of PodSources.
	PodsOfNode bool
	// NodePortPrefixes select the addresses that NodePorts listen on. Nil selects the primary address of each family. Of a
	// family without a prefix all addresses are selected.
	NodePortPrefixes []netip.Prefix
	// NodePortPrimary selects the primary address of each family too, and of a family without a prefix only that.
	NodePortPrimary bool
	// LocalAddrs are the addresses of this node's links.
	LocalAddrs []netip.Addr
	// BindsAddresses: the data plane adds the addresses of Services to this node. Then those of other hosts and of Pods are not
	// served.
	BindsAddresses bool
	// Hosts are addresses that this node needs to reach, and that the cluster state does not have: gateways and API servers.
	Hosts []netip.Addr
	// PodRanges are addresses of Pods, also if they do not identify Pods as sources.
	PodRanges []netip.Prefix
	Policies  *policy.Set
	// ClusterRanges contain addresses of the cluster that the configuration names: of Pods and of API servers.
	ClusterRanges []netip.Prefix
	// OutcomeNeeds are the abi.Need bits for which the outcomes of connections are counted: of Services whose policy has a plugin
	// with one of them.
	OutcomeNeeds uint32
	// CountAll counts the outcomes of connections of all Services, for metrics.
	CountAll bool
}

// AllowedEndpoints returns the exceptions of eligibility.EndpointRules: EndpointCIDRs, and the reserved blocks that the cluster
// uses according to the configuration and the Nodes' ranges and addresses.
func (s *Settings) AllowedEndpoints(nodes ...*model.Node) []netip.Prefix {
	used := slices.Clone(s.ClusterRanges)
	for _, n := range nodes {
		used = append(used, n.PodCIDRs...)
		for _, a := range n.Addresses {
			used = append(used, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return slices.Concat(s.EndpointCIDRs, eligibility.ReservedInUse(used))
}

// EndpointRules returns which addresses may be endpoints on any node of a cluster that does not change.
func (s *Settings) EndpointRules(c *model.Snapshot) *eligibility.EndpointRules {
	var ips clusterIPs
	ips.follow(c)
	return &eligibility.EndpointRules{ServiceCIDRs: serviceCIDRs(c), ClusterIP: ips.contains, Allowed: s.AllowedEndpoints(slices.Collect(maps.Values(c.Nodes))...)}
}

// ExternalIPs is what to do with the external IPs of Services (KEP-5707).
type ExternalIPs uint8

// Values of ExternalIPs.
const (
	UndecidedExternalIPs ExternalIPs = iota // serve them, with a warning: kube-proxy of Kubernetes 1.40 will not
	AllowExternalIPs
	IgnoreExternalIPs
)

var externalIPsTexts = [...]string{"", "Allow", "Ignore"}

// MarshalText implements encoding.TextMarshaler.
func (e ExternalIPs) MarshalText() ([]byte, error) { return []byte(externalIPsTexts[e]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *ExternalIPs) UnmarshalText(text []byte) error {
	i := slices.Index(externalIPsTexts[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q: must be Allow or Ignore", text)
	}
	*e = ExternalIPs(i)
	return nil
}
