// Package engine runs the only loop: it receives cluster changes, plans, programs the backend, and owns the clock,
// timers, retries and ordering. The interfaces that it consumes are declared here and in host/backend.
package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Source provides the cluster state.
type Source interface {
	// Run emits changes until ctx is done: first the whole state, then one Synced change, then updates. Changes that
	// belong together are emitted in one call. Invalid objects are logged, not emitted: the last valid version of an
	// object stays in force.
	Run(ctx context.Context, emit func([]model.Change)) error
}

// NodeRememberer is implemented by a Source that waits for this node's Node at the start.
type NodeRememberer interface {
	// RememberNode passes what was known of the Node before; nil: nothing. It is called while Run begins.
	RememberNode(*model.Node)
}

// ConnTable modifies the kernel's connection tracking table.
type ConnTable interface {
	// Reset ends the connections through the given frontends to the given endpoints. The next packet of a TCP connection is
	// answered with RST, by a data plane that is told of it first unless tcp is nil; that of another protocol starts a new
	// connection.
	Reset(ctx context.Context, resets []plan.Reset, tcp backend.Resetter) (plan.ResetCount, error)
	// DeleteStaleUDP deletes the UDP flows of a family for which stale returns true, and returns their number. stale is called
	// with the destination of a flow and the source of its replies, which is the destination unless the flow was translated. It
	// may be true only for flows to the given frontends. DeleteStaleUDP is called outside of the loop, one call at a time, works
	// in the calling thread, and may overlap with the other methods.
	DeleteStaleUDP(ctx context.Context, f model.Family, frontends []plan.Key, stale func(to, endpoint netip.AddrPort) bool) (int, error)
	// DeleteUnreplied deletes the entries of connections through the given frontends to the given endpoints that have had no
	// answer, and returns their number. It is called outside of the loop, one call at a time, works in the calling thread, and
	// may overlap with the other methods.
	DeleteUnreplied(ctx context.Context, to []plan.Reset) (int, error)
}

// ConnShedder is implemented by a ConnTable that resets part of the connections to endpoints.
type ConnShedder interface {
	// Shed resets the established connections that the sheds select, as Reset does. deferred are the sheds that it has not begun
	// with and that are to be repeated; nil: none. It is called outside of the loop, one call at a time, at least a second apart,
	// and may overlap with the methods of ConnTable.
	Shed(ctx context.Context, sheds []plan.Shed, tcp backend.Resetter) (n plan.ResetCount, deferred []bool, err error)
}

// ConnCounter is implemented by a ConnTable that counts open connections.
type ConnCounter interface {
	// CountConnections adds the open connections to the endpoints that are in count. Other endpoints are not added. It is called
	// outside of the loop, one call at a time, and works in the calling thread.
	CountConnections(ctx context.Context, count map[model.EndpointKey]uint32) error
}

// Plugins calls plugins outside of the loop.
type Plugins interface {
	// Call begins calls, and returns those that have been answered since the last time, see policy.Call. It waits for answers for
	// at most this long, and not for those that are likely to take longer.
	Call(calls []*policy.Call, wait time.Duration) []*policy.Call
	// Ready receives a value when there are answers.
	Ready() <-chan struct{}
}

// Checkpoint persists a few bytes across restarts.
type Checkpoint interface {
	// Load returns what was stored last. The error is fs.ErrNotExist if nothing was.
	Load() ([]byte, error)
	// Store replaces the content atomically.
	Store([]byte) error
}
