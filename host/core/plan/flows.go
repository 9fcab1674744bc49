package plan

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Reset requests that the established connections through a frontend to an endpoint are reset now.
type Reset struct {
	Frontend Key
	Endpoint netip.AddrPort
}

// UDPFlows says which UDP flows through frontends are stale. Otherwise a client that keeps its socket would keep sending to an
// endpoint that no longer exists or is another Service's, or to none, because each packet extends the conntrack entry.
type UDPFlows struct {
	Frontends map[Key]UDPFrontend
	NodePorts []netip.Addr // this node's addresses that serve NodePorts
	Former    []netip.Addr // those that did before
}

// UDPFrontend says which UDP flows through a frontend are stale: those that were translated if it is gone, and all that do not go
// to an endpoint that keeps its flows otherwise.
type UDPFrontend struct {
	Gone    bool
	Serving []netip.AddrPort // that keep their flows, sorted
	Kept    []netip.AddrPort // those of Serving that do not serve, sorted
	next    *Frontend        // see Renew
}

// Find reports what becomes of a flow to a destination whose replies come from an endpoint; that of a flow that was never
// translated is its destination.
func (u *UDPFlows) Find(to, endpoint netip.AddrPort) (stale, kept bool) {
	f, found := u.Frontends[Key{to.Addr(), to.Port(), model.UDP}]
	if !found {
		k := Key{netip.IPv4Unspecified(), to.Port(), model.UDP}
		if to.Addr().Is6() {
			k.Addr = netip.IPv6Unspecified()
		}
		f, found = u.Frontends[k]
		if serves := slices.Contains(u.NodePorts, to.Addr()); !serves {
			found, f.Gone = found && slices.Contains(u.Former, to.Addr()), true
		}
	}
	switch {
	case !found:
		return false, false
	case f.Gone:
		return endpoint != to, false
	}
	stale = !contains(f.Serving, endpoint) && (f.next == nil || !f.next.Takes(endpoint))
	return stale, contains(f.Kept, endpoint)
}

// Renew makes flows to the endpoints that get new ones through a frontend not stale: it is about to be programmed.
func (u *UDPFlows) Renew(f *Frontend) {
	if known, found := u.Frontends[f.Key]; found {
		known.Gone, known.next = false, f
		u.Frontends[f.Key] = known
	}
}

func contains(sorted []netip.AddrPort, a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, a, netip.AddrPort.Compare)
	return found
}

// ShedSpace is the number of values of ShedHash.
const ShedSpace = 1 << 32

// Connection is a TCP connection, by the addresses that its client uses.
type Connection struct{ Client, Frontend netip.AddrPort }

// ResetCount is the result of resetting connections.
type ResetCount struct {
	Connections int // that were ended
	// Uncertain is how many of these may go on: TCP connections of which the data plane had no room to remember that they are to
	// be reset. Their next packet is balanced like that of a new connection, and may meet the same endpoint.
	Uncertain int
}

// Shed requests that part of the established connections through frontends to an endpoint is reset now: those with From ≤
// ShedHash < To. The steps of one shed are adjacent, so a connection that one of them has spared is not in the next one.
type Shed struct {
	Frontends []Key // of one family and protocol
	Endpoint  netip.AddrPort
	Seed      uint64 // the same in all steps
	From, To  uint64 // of ShedSpace
	Until     uint64 // To of the last step
}

// ShedHash returns the value of a connection that decides when it is reset, from the addresses that its client uses. It is spread
// evenly, and differs between seeds.
func ShedHash(seed uint64, client, frontend netip.AddrPort) uint32 {
	x := seed
	mix := func(v uint64) { // the finalizer of SplitMix64
		x = (x ^ v) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	for _, a := range [...]netip.AddrPort{client, frontend} {
		b := a.Addr().As16()
		mix(binary.BigEndian.Uint64(b[:8]))
		mix(binary.BigEndian.Uint64(b[8:]))
		mix(uint64(a.Port()))
	}
	return uint32(x >> 32)
}
