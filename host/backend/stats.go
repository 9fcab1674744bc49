package backend

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// ServerCounters are the kernel's counters of a virtual server since its creation. The kernel updates them every 2 s.
// Connections and packets wrap around at 2^32.
type ServerCounters struct {
	Connections, PacketsIn, PacketsOut uint32
	BytesIn, BytesOut                  uint64
}

// ServerStats are the statistics of one virtual server of sluice.
type ServerStats struct {
	// Server is the address or the packet mark of the virtual server, human-readable.
	Server string
	// Frontend is the frontend that uses the virtual server, for the sources that Pool states. Without one, Pool is
	// empty: the virtual server is draining.
	Frontend  plan.Key
	Owner     model.PortName
	Pool      ServerPool
	Scheduler string
	ServerCounters
	Destinations []DestinationStats // sorted by address
}

// ServerPool states whose connections a virtual server takes.
type ServerPool string

// The pools: of all sources, or, under a Local policy, of Pods and the node, and of all others.
const (
	PoolAll     ServerPool = "all"
	PoolInside  ServerPool = "inside"
	PoolOutside ServerPool = "outside"
)

// DestinationStats are the statistics of a destination of a virtual server.
type DestinationStats struct {
	Addr             netip.AddrPort
	Weight           uint16
	Active, Inactive int  // connections
	Draining         bool // no longer in the plan, and kept for its connections
}
