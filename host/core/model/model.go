// Package model defines cluster state as parsed values: what a Service proxy needs of Services, EndpointSlices and Nodes. Values
// are immutable once handed over; an update is a new value.
//
// It imports no Kubernetes package, so the core can be read, tested and fuzzed without them.
package model

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Family is an IP family. Each family of a Service is proxied independently (KEP-563).
type Family uint8

// The IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns IPv4 or IPv6, as in EndpointSlice.addressType.
func (f Family) String() string { return "IPv" + strconv.Itoa(int(f)) }

// FamilyOf returns the family of an address. IPv4-mapped IPv6 addresses are IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Families are the IP families.
var Families = [...]Family{IPv4, IPv6}

// Protocol is the IANA number of a protocol that a Service can have.
type Protocol uint8

// The protocols of Service ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the Kubernetes name: TCP, UDP or SCTP.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "protocol(" + strconv.Itoa(int(p)) + ")"
}

// ParseProtocol parses the Kubernetes name of a protocol.
func ParseProtocol(s string) (Protocol, bool) {
	switch s {
	case "TCP":
		return TCP, true
	case "UDP":
		return UDP, true
	case "SCTP":
		return SCTP, true
	}
	return 0, false
}

// Name is the name of a namespaced object.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(m Name) int {
	if c := strings.Compare(n.Namespace, m.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, m.Name)
}

// PortName identifies a Service port. The same number on TCP and UDP are two ports.
type PortName struct {
	Service  Name
	Port     string // the port's name, "" for a single unnamed port
	Protocol Protocol
}

// String returns namespace/name:port, or namespace/name for an unnamed port.
func (p PortName) String() string {
	if p.Port == "" {
		return p.Service.String()
	}
	return p.Service.String() + ":" + p.Port
}

// Compare orders by Service, port name, protocol.
func (p PortName) Compare(q PortName) int {
	if c := p.Service.Compare(q.Service); c != 0 {
		return c
	}
	if c := strings.Compare(p.Port, q.Port); c != 0 {
		return c
	}
	return cmp.Compare(p.Protocol, q.Protocol)
}

// EndpointKey identifies an endpoint of the data plane. Service ports with the same endpoints share it.
type EndpointKey struct {
	Addr     netip.AddrPort
	Protocol Protocol
}

// String returns address:port/protocol.
func (k EndpointKey) String() string { return k.Addr.String() + "/" + k.Protocol.String() }

// Compare orders by address, port, protocol.
func (k EndpointKey) Compare(l EndpointKey) int {
	if c := k.Addr.Compare(l.Addr); c != 0 {
		return c
	}
	return cmp.Compare(k.Protocol, l.Protocol)
}

// Service is a Service to proxy: not headless, not ExternalName.
type Service struct {
	Name                Name
	Labels              map[string]string // for policy bindings
	Annotations         Annotations       // likewise; those that a plugin may declare
	Policy              string            // annotation sluice.dev/policy, "" for none
	Selector            string            // spec.selector as a label selector, sorted by key; "" for none
	Settings            string            // annotation sluice.dev/settings, "" for none; as it is written, at most MaxSettings bytes, or one more if longer
	Created             int64             // creation time, Unix seconds; 0 when unknown
	KeepUDP             bool              // UDP flows to endpoints that terminate are kept, see MaxKeepUDP
	MaxKeepUDP          time.Duration     // for how long after the endpoint serves no more; 0: until it is gone
	RetryRefused        bool              // see plan.Frontend.RetryRefused
	ClusterIPs          []netip.Addr      // at most one a family
	ExternalIPs         []netip.Addr
	LoadBalancerIPs     []netip.Addr   // status ingress addresses with ipMode VIP or none
	ReservedIPs         []netip.Addr   // status ingress addresses that are not served, and belong to the Service nevertheless
	SourceRanges        []netip.Prefix // loadBalancerSourceRanges, sorted, none in another one; empty: no restriction
	InternalLocal       bool           // internalTrafficPolicy: Local
	ExternalLocal       bool           // externalTrafficPolicy: Local
	HealthCheckNodePort uint16         // 0: none
	Affinity            time.Duration  // timeout of sessionAffinity ClientIP; 0: none
	Ports               []ServicePort
}

// HasFamily reports whether the Service has a ClusterIP of a family.
func (s *Service) HasFamily(f Family) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return FamilyOf(a) == f })
}

// MaxSettings is the maximum length of Service.Settings in bytes.
const MaxSettings = 16 << 10

// ServicePort is a port of a Service. There is no target port: EndpointSlices have the number.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// EndpointSlice is a discovery.k8s.io/v1 EndpointSlice of one Service and family.
type EndpointSlice struct {
	Name      Name
	Service   Name // label kubernetes.io/service-name; same namespace
	Family    Family
	Ports     []SlicePort // in a Snapshot sorted by name, then protocol
	Endpoints []SliceEndpoint
	// Trigger is the annotation endpoints.kubernetes.io/last-change-trigger-time, the time of the event that caused the slice's
	// last change, Unix milliseconds; 0: none.
	Trigger int64
	// Version is the resourceVersion, by which the writes of slices are ordered (KEP-5504); 0: unknown. It and Trigger decide
	// only between entries of the same Pod, see SameContent.
	Version uint64
}

// SameContent reports whether two slices are equal except for Trigger and Version.
func (s *EndpointSlice) SameContent(t *EndpointSlice) bool {
	if s == t {
		return true
	}
	if s == nil || t == nil {
		return false
	}
	a, b := *s, *t
	a.Trigger, b.Trigger, a.Version, b.Version = 0, 0, 0, 0
	return reflect.DeepEqual(&a, &b)
}

// SlicePort is a port of every endpoint in a slice.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Compare orders by name, then protocol.
func (p SlicePort) Compare(q SlicePort) int {
	if c := strings.Compare(p.Name, q.Name); c != 0 {
		return c
	}
	return cmp.Compare(p.Protocol, q.Protocol)
}

// SliceEndpoint is an endpoint address with its conditions; nil conditions are resolved (KEP-1672).
type SliceEndpoint struct {
	Addr        netip.Addr
	Node        string // "" when unknown
	Zone        string // "" when unknown
	Ready       bool
	Serving     bool
	Terminating bool
	Hints       *Hints // nil: none; endpoints may share them
	Pod         string // name in targetRef if that is a Pod of the slice's namespace
}

// Hints are the topology hints of an endpoint. Many endpoints share few distinct values.
type Hints struct {
	Zones []string // KEP-2433
	Nodes []string // KEP-3015, PreferSameNode
}

// ForZones returns the zone hints.
func (e *SliceEndpoint) ForZones() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// ForNodes returns the node hints.
func (e *SliceEndpoint) ForNodes() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

// ServiceCIDR is a range from which ClusterIPs are allocated.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix // at most one a family
}

// Node is what a proxy needs of a Node.
type Node struct {
	Name      string
	Zone      string            // label topology.kubernetes.io/zone
	Labels    map[string]string // from an API server: all of this node's Node, those of others that policies see
	Addresses []netip.Addr      // InternalIP first, then ExternalIP, in the Node's order
	PodCIDRs  []netip.Prefix    // spec.podCIDRs
	MilliCPU  int64             // status.allocatable cpu in millicores; 0 when unknown
	Ready     bool              // condition Ready
	Leaving   bool              // has a deletionTimestamp, or the taint ToBeDeletedByClusterAutoscaler (KEP-3836)
}
