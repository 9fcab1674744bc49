// Package backend is the contract between the engine and the data planes that it programs: host/backend/nftables,
// host/backend/ipvs and host/backend/fake. The conformance kit in host/backend/conformance checks it on all three.
package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Backend programs plans into a data plane. Callers serialize calls.
//
// For every plan p that fits Caps, see plan.Fit, Read(Apply(p)) == Normalize(p, Caps()), and a second Apply(p) sends nothing. If
// any message fails, every frontend is in its old or its new state, never without endpoints, and the next Apply converges.
// Connections to endpoints that stay are never reset. State that sluice does not own is not modified.
type Backend interface {
	// Caps returns what the data plane can represent. It is constant for the lifetime of the Backend.
	Caps() plan.Caps
	// Apply programs next, which differs from the previous plan by d. If d is nil, Apply compares next with the data
	// plane itself. Both fit Caps. After an error other than a PartialError, the next call must pass a nil d.
	Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (Report, error)
	// Read decodes the state of the data plane into a plan. It lists the kernel: not for the hot path.
	Read(ctx context.Context) (*plan.Plan, error)
	// Close releases handles. The data plane keeps forwarding.
	Close() error
}

// PartialError is returned by Apply when everything but some frontends was programmed. The backend knows the state of
// those frontends: later changes may be passed as deltas, and an empty delta retries the failed frontends. Every Apply
// returns a PartialError for as long as there are any.
type PartialError struct {
	Frontends int   // number of frontends that are not programmed as planned
	Retried   bool  // whether this Apply tried to program them; if false, Err is that of an earlier Apply
	Err       error // the reasons, joined
	// Failed are the frontends with their reasons, for the caller to read.
	Failed map[plan.Key]error
}

// Error implements error.
func (e *PartialError) Error() string {
	return fmt.Sprintf("%d frontends are not programmed as planned: %v", e.Frontends, e.Err)
}

// Unwrap returns the reasons.
func (e *PartialError) Unwrap() error { return e.Err }

// Preloader is implemented by backends that can read the data plane's state ahead of the first Apply, which then has less to do.
// Calls are serialized with those of Backend.
type Preloader interface {
	// Preload reads the state. An error is of no consequence: Apply reads the state again, as after a change by another process.
	Preload(ctx context.Context) error
}

// Watcher is implemented by backends that detect changes made to their state by other processes.
type Watcher interface {
	// Watch calls onChange for each external change since Apply has read the state, until stop is called. onChange runs in
	// another goroutine, or for changes before Watch in the caller's, and must not block.
	Watch(onChange func(ExternalChange)) (stop func(), err error)
	// Drifted reports whether the state was changed by something that neither Apply nor Watch accounts for. It may
	// return false positives. It is cheap; calls are serialized with those of Backend.
	Drifted(ctx context.Context) (bool, error)
}

// OutcomeCounter is implemented by backends that count the outcomes of connections, as plan.Caps.Outcomes says. Calls may overlap
// with those of Backend, except for Close, but not with each other.
type OutcomeCounter interface {
	// ReadOutcomes returns the counters of the endpoints of all frontends with Outcomes. They start at 0 when an endpoint
	// is first counted, and can start again at 0 when its table is replaced or repaired. Endpoints beyond the limit of the
	// data plane are missing, and those that come or leave meanwhile may be. After an error of Apply it returns an error until an
	// Apply succeeds. It does not delay other calls by more than a part of a millisecond. The map is valid until the next call.
	ReadOutcomes(ctx context.Context) (map[model.EndpointKey]OutcomeCounters, error)
	// UncountedEndpoints returns the number of endpoints beyond the limit of the data plane.
	UncountedEndpoints() int
}

// OutcomeCounters count connections that this node sent to an endpoint, whichever frontend they came through.
type OutcomeCounters struct {
	// Attempts is the number of connections. Retransmitted SYNs do not count.
	Attempts uint64
	// Answered is the number of SYN-ACKs, INIT ACKs, and UDP flows with a reply. A retransmitted SYN-ACK or INIT ACK counts
	// again, so Answered can exceed Attempts.
	Answered uint64
	// Refused is the number of RSTs that answer a SYN, ABORTs that answer an INIT, and connections that an ICMP
	// destination unreachable refused.
	Refused uint64
}

// ConnectionCounter is implemented by backends whose data plane counts open connections itself. Calls are serialized with those
// of Backend.
type ConnectionCounter interface {
	// CountConnections adds the open connections through the given frontends to the endpoints that are in count. Other endpoints
	// are not added.
	CountConnections(ctx context.Context, frontends []plan.Key, count map[model.EndpointKey]uint32) error
}

// Resetter is implemented by backends whose data plane balances TCP connections that conntrack does not know. Others reset them.
type Resetter interface {
	// ResetTCP makes the data plane answer the next packets of these connections with RST, and returns how many it cannot
	// remember. The caller deletes their conntrack entries afterwards: before, a packet could be balanced in between. Calls may
	// overlap with those of Backend, except for Close, and with each other.
	ResetTCP(ctx context.Context, list []plan.Connection) (left int, err error)
}

// Offloader is implemented by backends whose data plane has flowtables.
type Offloader interface {
	// SyncOffload makes the data plane forward established connections of frontends with LongLived by a flowtable, on the links
	// that the node has now, or stops that. filters returns which rules of other programs connections would pass by, "" if there
	// are none; while there are, or it fails, connections are not offloaded. It is called only if there are such frontends. An
	// error is in the result only: Apply does not depend on it. Calls may overlap with those of Backend, not with each other.
	SyncOffload(ctx context.Context, filters func() (string, error)) Offload
}

// Offload is whether connections of frontends with LongLived go by a flowtable.
type Offload struct {
	Frontends int
	// Links are in the flowtable; packets that arrive on one of the Others, which are beyond the limit, go by all rules.
	Links, Others int
	// Reason is why no connection goes by a flowtable, or not on all links; "": all do.
	Reason string
	Failed uint64 // transactions, since the start
}

// UDPRemover is implemented by backends that remember which frontends of UDP they have removed without a delta that names them.
// Calls are serialized with those of Backend.
type UDPRemover interface {
	// RemovedUDP returns the UDP frontends that were in the data plane, but not in the plan, when an Apply compared the two,
	// since the last call: another process, or another version of this one, has programmed them.
	RemovedUDP() []plan.Key
}

// ExternalChange describes changes that another process made to state owned by sluice.
type ExternalChange struct {
	Object  string // what was changed, human-readable
	Process string // who changed it, such as `nft (pid 42)`; empty if unknown
	Count   int    // number of changes
}

// Report summarizes one Apply.
type Report struct {
	Messages int // netlink messages sent to the kernel
	Elements int // elements added and deleted, in the backend's own units
	// Transactions is the number of kernel transactions, and Longest the duration of the longest one, during which
	// other writers to the data plane wait.
	Transactions int
	Longest      time.Duration
	// RequeueAfter asks for another Apply with an empty delta after this time, to remove what make-before-break left
	// behind. Zero means nothing is left. An earlier or later Apply is harmless.
	RequeueAfter time.Duration
}
