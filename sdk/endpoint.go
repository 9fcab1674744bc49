package sdk

import (
	"net/netip"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Endpoint is an eligible endpoint of a Request: it may get weight. It is valid as long as its Request.
type Endpoint struct{ p unsafe.Pointer }

// Conditions is a set of conditions of an endpoint.
type Conditions uint32

// The conditions.
const (
	Ready       Conditions = abi.Ready
	Serving     Conditions = abi.Serving
	Terminating Conditions = abi.Terminating
	Local       Conditions = abi.Local      // on this node
	Chosen      Conditions = abi.Chosen     // by the default rules
	HintedZone  Conditions = abi.HintedZone // to this node's zone
	HintedNode  Conditions = abi.HintedNode // to this node
)

// Has reports whether c contains all of d.
func (c Conditions) Has(d Conditions) bool { return c&d == d }

// Addr returns the address and port of the endpoint.
func (e Endpoint) Addr() netip.AddrPort {
	a := netip.AddrFrom16(*(*[16]byte)(unsafe.Add(e.p, abi.EndpointAddr))).Unmap()
	return netip.AddrPortFrom(a, u16(e.p, abi.EndpointPort))
}

// Conditions returns all conditions.
func (e Endpoint) Conditions() Conditions { return Conditions(u32(e.p, abi.EndpointConditions)) }

// Ready reports whether the endpoint is ready for new connections.
func (e Endpoint) Ready() bool { return e.Conditions()&Ready != 0 }

// Serving reports whether the endpoint is ready regardless of termination.
func (e Endpoint) Serving() bool { return e.Conditions()&Serving != 0 }

// Terminating reports whether its Pod is being deleted.
func (e Endpoint) Terminating() bool { return e.Conditions()&Terminating != 0 }

// Local reports whether it is on this node.
func (e Endpoint) Local() bool { return e.Conditions()&Local != 0 }

// Chosen reports whether it gets new connections by the default rules, that is without a policy.
func (e Endpoint) Chosen() bool { return e.Conditions()&Chosen != 0 }

// Node returns the name of its node, NoString if it is unknown.
func (e Endpoint) Node() StringID { return StringID(u32(e.p, abi.EndpointNode)) }

// Zone returns the name of its zone, NoString if it is unknown.
func (e Endpoint) Zone() StringID { return StringID(u32(e.p, abi.EndpointZone)) }

// ZoneIndex returns the index of its zone for Request.Zone, or -1.
func (e Endpoint) ZoneIndex() int { return zoneIndex(u16(e.p, abi.EndpointZoneIndex)) }

// Weight returns the weight set by the previous plugin of the chain. For the first plugin it is 1 if the endpoint is
// Chosen, else 0.
func (e Endpoint) Weight() int { return int(u32(e.p, abi.EndpointWeight)) }

// PriorWeight returns the weight of the chain's last decision; known is false if there is none.
func (e Endpoint) PriorWeight() (weight int, known bool) {
	w := int32(u32(e.p, abi.EndpointPriorWeight))
	return int(max(w, 0)), w != abi.NoWeight
}

// ReadySince returns when it became ready, 0 if it is not.
func (e Endpoint) ReadySince() Time { return Time(u64(e.p, abi.EndpointReadySince)) }

// TerminatingSince returns when this node first saw it terminating, 0 if it is not or if that is unknown.
func (e Endpoint) TerminatingSince() Time { return Time(u64(e.p, abi.EndpointTerminatingSince)) }

// Connections returns the number of established connections from this node. Reserved (NeedConnections): no host counts
// them yet, and counted is false.
func (e Endpoint) Connections() (n int, counted bool) {
	v := u32(e.p, abi.EndpointConnections)
	if v == abi.ConnectionsUnknown {
		return 0, false
	}
	return int(v), true
}

// Metadata returns the labels and annotations of its Pod, one key=value per line. Reserved (NeedMetadata): no host
// provides them yet, and it is NoString.
func (e Endpoint) Metadata() StringID { return StringID(u32(e.p, abi.EndpointMetadata)) }
