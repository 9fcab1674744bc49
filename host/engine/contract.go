// Package engine is the only loop: events, clock, timers, retry and order. Everything it needs of the world it asks
// for through the small interfaces of this file.
package engine

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Source is where cluster state comes from.
type Source interface {
	// Run emits changes until ctx ends: first the whole state, then one Synced change, then what changes. Several
	// changes that belong together come in one call. Bad input is logged, not emitted: what was good before stays.
	Run(ctx context.Context, emit func([]model.Change)) error
}

// Backend programs plans into a data plane. It is used by one goroutine at a time.
//
// The law, checked by host/backend/conform: Read(Apply(p)) == Normalize(p, Caps()); a second Apply(p) sends nothing;
// when any message fails, every frontend is in its old or its new state and never empty, and the next Apply
// converges; connections to members that stay are never reset; nothing that is not sluice's is touched.
type Backend interface {
	// Caps is constant after open.
	Caps() plan.Caps
	// Apply brings the data plane to next, at the cost of d. A nil d means "all of it": the backend finds out
	// itself what differs. It normalises what it is given. After an error other than Stuck the next Apply is called
	// with a nil d.
	Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (Report, error)
	// Read decodes the data plane's state back into a plan. Not for the hot path.
	Read(ctx context.Context) (*plan.Plan, error)
	// Close lets go of the handles; the data plane goes on forwarding.
	Close() error
}

// Stuck is the error of an Apply after which all is as planned but some frontends, each as near to it as it can be. The
// backend knows what it holds: what changes meanwhile may come as deltas, which do not wait for the stuck ones, and an
// empty delta tries those again. Each Apply returns it as long as there are some.
type Stuck struct {
	Frontends int
	Tried     bool // in this Apply; otherwise nothing is new
	Err       error
}

// Error implements error.
func (s *Stuck) Error() string {
	return fmt.Sprintf("%d frontends are not as planned: %v", s.Frontends, s.Err)
}

// Unwrap gives the reasons.
func (s *Stuck) Unwrap() error { return s.Err }

// Watcher is what a Backend may be besides: one that notices when somebody else writes to what it has programmed.
type Watcher interface {
	// Watch hears of such writes from its return until stop. heard is called by another goroutine, and is quick.
	Watch(heard func(Foreign)) (stop func(), err error)
	// Moved tells whether something was written that neither Apply nor Watch explains; it may err towards true. It is
	// cheap, and called as the methods of Backend are, one at a time.
	Moved(ctx context.Context) (bool, error)
}

// Foreign is what somebody else wrote.
type Foreign struct {
	What  string // what was changed, for people
	By    string // who did; "" when that is not known
	Count int    // of changes
}

// Report says what an Apply did.
type Report struct {
	Messages int // sent to the kernel
	Elements int // added and deleted, in the backend's own units
	// Transactions is in how many steps that was committed, and Longest how long the kernel was at the one that took
	// most: so long nobody else could change what the backend programs.
	Transactions int
	Longest      time.Duration
	// Again asks for another Apply (with an empty delta) after this long, to take away what make-before-break left
	// behind; 0: nothing is left. Applying earlier or later is harmless.
	Again time.Duration
}

// ConnTable ends established connections.
type ConnTable interface {
	// Reset ends the connections through the given frontends to the given members, and tells how many there were.
	// Their next packet is answered by a reset, or finds another member.
	Reset(ctx context.Context, resets []plan.Reset) (int, error)
	// Forget deletes the UDP flows through the given frontends that go elsewhere than they may, and tells how many
	// there were. The node's addresses are where NodePorts are.
	Forget(ctx context.Context, stale []plan.Stale, node []netip.Addr) (int, error)
}

// Observer is told what the engine does, for health checks and metrics. It is called in the engine's loop, Queued in
// the source's goroutine too, and must be quick, never block, and keep nothing that it is handed.
type Observer interface {
	// Queued: changes have arrived and wait to be taken.
	Queued(changes []model.Change, at time.Time)
	// Taken: whatever was queued before has been taken, and is part of what is planned next.
	Taken()
	// Planned: a step has been planned, and nothing of it is in the data plane yet.
	Planned(*Planned)
	// Programmed follows each Planned: what came of it.
	Programmed(*Programmed)
	// Noted: something else was done.
	Noted(Note)
}

// Checkpoint keeps a few bytes over restarts.
type Checkpoint interface {
	// Load gives what was stored last; an error that is fs.ErrNotExist means that nothing was.
	Load() ([]byte, error)
	// Store replaces it, whole or not at all.
	Store([]byte) error
}
