package sdk

import (
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Endpoint is an endpoint of a Request. It may have capacity if it is Eligible. It is valid as long as its Request.
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
	Eligible    Conditions = abi.Eligible   // may have capacity
	Held        Conditions = abi.Held       // eligible only because the policy's panic hold is in force
)

// Has reports whether c contains all of d.
func (c Conditions) Has(d Conditions) bool { return c&d == d }

// Addr returns the address and port of the endpoint.
func (e Endpoint) Addr() Addr {
	return Addr{*(*[16]byte)(unsafe.Add(e.p, abi.EndpointAddr)), u16(e.p, abi.EndpointPort)}
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

// Eligible reports whether it may have capacity: it is ready, terminating and still serving, or Held. That of any other endpoint
// is 0, whatever a plugin sets.
func (e Endpoint) Eligible() bool { return e.Conditions()&Eligible != 0 }

// Held reports whether it is eligible only because the policy's panic hold is in force: it was ready until recently.
func (e Endpoint) Held() bool { return e.Conditions()&Held != 0 }

// Node returns the name of its node, NoString if it is unknown.
func (e Endpoint) Node() StringID { return StringID(u32(e.p, abi.EndpointNode)) }

// Zone returns the name of its zone, NoString if it is unknown.
func (e Endpoint) Zone() StringID { return StringID(u32(e.p, abi.EndpointZone)) }

// ZoneIndex returns the index of its zone for Request.Zone, or -1.
func (e Endpoint) ZoneIndex() int { return zoneIndex(u16(e.p, abi.EndpointZoneIndex)) }

// Capacity returns how much of an ordinary endpoint there is, in millionths (One), as plugins before have set it. For the first
// plugin it is One if the default rules use the endpoint, whatever the hints, else 0.
func (e Endpoint) Capacity() int { return int(u32(e.p, abi.EndpointCapacity)) }

// Share returns what each unit of its capacity gets of the connections of its group, relative to the other endpoints, as plugins
// before have set it. For the first plugin it is One, or 0 if its topology hints are not for this node.
func (e Endpoint) Share() int { return int(u32(e.p, abi.EndpointShare)) }

// Load returns Capacity times Share: what the endpoint gets of the connections of its group, relative to the other endpoints.
func (e Endpoint) Load() uint64 {
	return uint64(u32(e.p, abi.EndpointCapacity)) * uint64(u32(e.p, abi.EndpointShare))
}

// Group returns the index of its group for Request.GroupPart: 0 if no plugin before has set groups.
func (e Endpoint) Group() int { return int(u16(e.p, abi.EndpointGroup)) }

// PriorWeight returns the weight of the chain's last decision, in the data plane; known is false if there is none.
func (e Endpoint) PriorWeight() (weight int, known bool) {
	w := int32(u32(e.p, abi.EndpointPriorWeight))
	return int(max(w, 0)), w != abi.NoWeight
}

// ReadySince returns when it became ready, 0 if it is not.
func (e Endpoint) ReadySince() Time { return Time(u64(e.p, abi.EndpointReadySince)) }

// TerminatingSince returns when this node first saw it terminating, 0 if it is not or if that is unknown.
func (e Endpoint) TerminatingSince() Time { return Time(u64(e.p, abi.EndpointTerminatingSince)) }

// Pod returns the name of its Pod, NoString if it is unknown or without NeedPodNames.
func (e Endpoint) Pod() StringID { return StringID(u32(e.p, abi.EndpointPod)) }

// Connections returns the number of established connections from this node, as it was Request.ConnectionsAge ago; counted is
// false if it is unknown or without NeedConnections.
func (e Endpoint) Connections() (n int, counted bool) {
	v := u32(e.p, abi.EndpointConnections)
	if v == abi.ConnectionsUnknown {
		return 0, false
	}
	return int(v), true
}

// Addr is an IP address and a port. Use As16 for netip.AddrFrom16(a.As16()).Unmap(), with which a module is larger by a
// twentieth.
type Addr struct {
	ip   [16]byte
	port uint16
}

// As16 returns the IP address in 16 bytes. An IPv4 address is in the last four, after ::ffff.
func (a Addr) As16() [16]byte { return a.ip }

// Port returns the port.
func (a Addr) Port() uint16 { return a.port }

// Hash returns a hash of the address and port that is the same on every node. Addresses that differ in one bit have unrelated
// hashes. It is not cryptographic: who chooses addresses can choose hashes.
func (a Addr) Hash() uint32 {
	p := unsafe.Pointer(&a.ip)
	h := (u64(p, 0) ^ uint64(a.port)<<48) * 0x9E3779B97F4A7C15
	h = mix64(h ^ h>>32 ^ u64(p, 8))
	return uint32(h >> 32)
}

// mix64 is the finalizer of SplitMix64.
func mix64(h uint64) uint64 {
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}
