package plan

import "net/netip"

// Reset requests that the established connections through a frontend to an endpoint are reset now.
type Reset struct {
	Frontend Key
	Endpoint netip.AddrPort
}

// StaleUDPFlows requests the deletion of the UDP flows through a frontend that do not go to Serving. Otherwise a client that keeps
// its socket would keep sending to an endpoint that no longer exists, or to none, because each packet extends the conntrack entry.
type StaleUDPFlows struct {
	Frontend Key
	Serving  []netip.AddrPort // sorted
}
