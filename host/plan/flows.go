package plan

import "net/netip"

// Reset asks that the established connections of a frontend to an endpoint end now.
type Reset struct {
	Frontend Key
	Endpoint netip.AddrPort
}

// StaleUDPFlows says which UDP flows through a frontend may live on: those to Serving. Others are to be forgotten by the
// kernel, because a client that keeps its socket would stay with an endpoint that is gone, or with none, for as long
// as it sends.
type StaleUDPFlows struct {
	Frontend Key
	Serving  []netip.AddrPort // sorted
}
