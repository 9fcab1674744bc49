// Package engine is the only loop: events, clock, timers, retry and order. Everything it needs of the world it asks
// for through the small interfaces of this file.
package engine

import (
	"context"
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

// ConnTable ends established connections.
type ConnTable interface {
	// Reset ends the connections through the given frontends to the given members, and tells how many there were.
	// Their next packet is answered by a reset, or finds another member.
	Reset(ctx context.Context, resets []plan.Reset) (int, error)
	// DeleteStaleUDP deletes the UDP flows through the given frontends that go elsewhere than they may, and tells how many
	// there were. The node's addresses are where NodePorts are.
	DeleteStaleUDP(ctx context.Context, stale []plan.Stale, node []netip.Addr) (int, error)
}

// Observer is told what the engine does, for health checks and metrics. It is called in the engine's loop, Queued in
// the source's goroutine too, and must be quick, never block, and keep nothing that it is handed.
type Observer interface {
	// OnEnqueue: changes have arrived and wait to be taken.
	OnEnqueue(changes []model.Change, at time.Time)
	// OnDequeue: whatever was queued before has been taken, and is part of what is planned next.
	OnDequeue()
	// OnPlan: a step has been planned, and nothing of it is in the data plane yet.
	OnPlan(*PlannedStep)
	// OnApply follows each Planned: what came of it.
	OnApply(*ApplyResult)
	// OnEvent: something else was done.
	OnEvent(Event)
}

// Checkpoint keeps a few bytes over restarts.
type Checkpoint interface {
	// Load gives what was stored last; an error that is fs.ErrNotExist means that nothing was.
	Load() ([]byte, error)
	// Store replaces it, whole or not at all.
	Store([]byte) error
}
