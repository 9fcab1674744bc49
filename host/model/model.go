// Package model holds cluster state as parsed values: what a Service proxy needs of Services, EndpointSlices and
// Nodes, and nothing else. Values are immutable once handed over; an update is a new value.
//
// It imports no Kubernetes package, so that the core can be read, tested and fuzzed without one.
package model

import (
	"cmp"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Family is an IP family. Each family of a Service is proxied on its own (KEP-563).
type Family uint8

// The two families, numbered as people call them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String gives IPv4 or IPv6, as EndpointSlice.addressType spells it.
func (f Family) String() string { return "IPv" + strconv.Itoa(int(f)) }

// FamilyOf tells the family of an address. IPv4-mapped IPv6 addresses count as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Protocol is an IANA protocol number, of the three that a Service can have.
type Protocol uint8

// The protocols of Service ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String gives the Kubernetes name: TCP, UDP or SCTP.
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

// ParseProtocol reads the Kubernetes name of a protocol.
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

// Name is a namespaced object's name.
type Name struct{ Namespace, Name string }

// String gives namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(m Name) int {
	if c := strings.Compare(n.Namespace, m.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, m.Name)
}

// PortName identifies a Service port: the key of the proxy. The same number on TCP and UDP are two ports.
type PortName struct {
	Service  Name
	Port     string // the port's name, "" for a single unnamed port
	Protocol Protocol
}

// String gives namespace/name:port, without the colon for an unnamed port.
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

// Service is a Service that is to be proxied: never headless, never ExternalName.
type Service struct {
	Name                Name
	Labels              map[string]string // for policy bindings
	Policy              string            // annotation sluice.dev/policy, "" for none
	Created             int64             // creation, Unix seconds; 0 when unknown
	ClusterIPs          []netip.Addr      // at most one a family
	ExternalIPs         []netip.Addr
	LoadBalancerIPs     []netip.Addr   // status ingress addresses with ipMode VIP or none
	SourceRanges        []netip.Prefix // loadBalancerSourceRanges; empty: no restriction
	InternalLocal       bool           // internalTrafficPolicy: Local
	ExternalLocal       bool           // externalTrafficPolicy: Local
	HealthCheckNodePort uint16         // 0: none
	Affinity            time.Duration  // sessionAffinity ClientIP time-out; 0: none
	Ports               []ServicePort
}

// ServicePort is one port of a Service. There is no target port: a proxy takes the number from EndpointSlices.
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
	Ports     []SlicePort
	Endpoints []SliceEndpoint
	// Trigger is when what led to the slice's last change happened, Unix milliseconds, as the controller that wrote it
	// says; 0: it does not. It is for measuring only: see Same.
	Trigger int64
}

// SameContent tells whether two slices say the same: Trigger is no part of that.
func (s *EndpointSlice) SameContent(t *EndpointSlice) bool {
	if s == t {
		return true
	}
	if s == nil || t == nil {
		return false
	}
	a, b := *s, *t
	a.Trigger, b.Trigger = 0, 0
	return reflect.DeepEqual(&a, &b)
}

// SlicePort is a port of every endpoint in a slice.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// SliceEndpoint is one endpoint address with its conditions; nil conditions are resolved already (KEP-1672).
type SliceEndpoint struct {
	Addr        netip.Addr
	Node        string // "" when unknown
	Zone        string // "" when unknown
	Ready       bool
	Serving     bool
	Terminating bool
	Hints       *Hints // nil: none; endpoints may share them
	Pod         string // targetRef name when it is a Pod, for people to read
}

// Hints say for whom an endpoint is meant. There are few different ones, and many endpoints.
type Hints struct {
	Zones []string // KEP-2433
	Nodes []string // KEP-3015, PreferSameNode
}

// ForZones are the zones that the endpoint is meant for.
func (e *SliceEndpoint) ForZones() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Zones
}

// ForNodes are the nodes that the endpoint is meant for.
func (e *SliceEndpoint) ForNodes() []string {
	if e.Hints == nil {
		return nil
	}
	return e.Hints.Nodes
}

// ServiceCIDR is a range that the cluster takes ClusterIPs from.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix // at most one a family
}

// Node is what a proxy reads of a Node.
type Node struct {
	Name      string
	Zone      string         // label topology.kubernetes.io/zone
	Addresses []netip.Addr   // InternalIP first, then ExternalIP, in the Node's order
	PodCIDRs  []netip.Prefix // spec.podCIDRs
	MilliCPU  int64          // status.allocatable cpu in millicores; 0 when unknown
	Leaving   bool           // deletionTimestamp, or the taint ToBeDeletedByClusterAutoscaler (KEP-3836)
}
