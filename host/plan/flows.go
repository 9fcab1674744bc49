package plan

import "net/netip"

// Reset asks that the established connections of a frontend to a member end now.
type Reset struct {
	Frontend Key
	Member   netip.AddrPort
}

// Stale says which UDP flows through a frontend may live on: those to Serving. Others are to be forgotten by the
// kernel, because a client that keeps its socket would stay with an endpoint that is gone, or with none, for as long
// as it sends.
type Stale struct {
	Frontend Key
	Serving  []netip.AddrPort // sorted
}
