package sdk

import (
	"net/netip"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Endpoint is one endpoint of a Request: eligible, so it may get weight. It is valid as long as its Request.
type Endpoint struct{ p unsafe.Pointer }

// Conditions is a set of what holds for an endpoint.
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

// Has tells whether all of d hold.
func (c Conditions) Has(d Conditions) bool { return c&d == d }

// Addr is the endpoint's address and port.
func (e Endpoint) Addr() netip.AddrPort {
	a := netip.AddrFrom16(*(*[16]byte)(unsafe.Add(e.p, abi.EndpointAddr))).Unmap()
	return netip.AddrPortFrom(a, u16(e.p, abi.EndpointPort))
}

// Conditions gives all conditions at once.
func (e Endpoint) Conditions() Conditions { return Conditions(u32(e.p, abi.EndpointConditions)) }

// Ready tells that it takes new connections, as its Pod says.
func (e Endpoint) Ready() bool { return e.Conditions()&Ready != 0 }

// Serving tells that it is ready, or would be if it were not terminating.
func (e Endpoint) Serving() bool { return e.Conditions()&Serving != 0 }

// Terminating tells that its Pod is being deleted.
func (e Endpoint) Terminating() bool { return e.Conditions()&Terminating != 0 }

// Local tells that it is on this node.
func (e Endpoint) Local() bool { return e.Conditions()&Local != 0 }

// Chosen tells that it gets new connections when no plugin is asked.
func (e Endpoint) Chosen() bool { return e.Conditions()&Chosen != 0 }

// Node is the name of its node, or None.
func (e Endpoint) Node() StringID { return StringID(u32(e.p, abi.EndpointNode)) }

// Zone is the name of its zone, or None.
func (e Endpoint) Zone() StringID { return StringID(u32(e.p, abi.EndpointZone)) }

// ZoneIndex is the index of its zone for Request.Zone, or -1.
func (e Endpoint) ZoneIndex() int { return zoneIndex(u16(e.p, abi.EndpointZoneIndex)) }

// Weight is what the plugin before in the chain gave it; before the first, 1 if it is Chosen, else 0.
func (e Endpoint) Weight() int { return int(u32(e.p, abi.EndpointWeight)) }

// PriorWeight is this chain's last answer for it; known is false when there is none.
func (e Endpoint) PriorWeight() (weight int, known bool) {
	w := int32(u32(e.p, abi.EndpointPriorWeight))
	return int(max(w, 0)), w != abi.NoWeight
}

// ReadySince is when it became ready, or 0.
func (e Endpoint) ReadySince() Time { return Time(u64(e.p, abi.EndpointReadySince)) }

// TerminatingSince is when this node saw it begin to terminate, or 0.
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
// provides them yet, and it is None.
func (e Endpoint) Metadata() StringID { return StringID(u32(e.p, abi.EndpointMetadata)) }
