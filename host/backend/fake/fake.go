// Package fake is an in-memory data plane and its backend, for tests of the engine, for scripts, and for trying a policy
// without a kernel.
//
// A Kernel stores a plan and forwards connections accordingly, with session affinity, masquerading and established
// connections that survive changes. A Backend is a handle on a Kernel, like a netlink socket: closing it changes nothing,
// and a new handle sees the state that the last one left. Faults can be injected into messages.
//
// It does not model performance, packet loss or properties of particular kernels: test those on the real backends. It has
// no network; it reports where a connection would go.
package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/slots"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Name is the name of the backend and of its table in a Kernel.
const Name = "sluice"

// ErrClosed is returned by a Backend after Close.
var ErrClosed = errors.New("fake: the backend is closed")

// Everything returns the capabilities of a Kernel that can represent every plan.
func Everything() plan.Caps {
	return plan.Caps{
		Name: "fake", ZeroWeight: true, Remote: true, Outcomes: true, LongLived: true, Step: slots.Step,
		Balances: []plan.Balance{plan.Random, plan.RoundRobin, plan.SourceHash, plan.LeastConnections},
	}
}

// Backend is a handle on a Kernel. It implements backend.Backend.
type Backend struct {
	kernel   *Kernel
	closed   bool
	rejected map[plan.Key]error // frontends that the Kernel did not take, see Kernel.Reject

	removedUDP []plan.Key // see backend.UDPRemover
}

var (
	_ backend.Backend        = (*Backend)(nil)
	_ backend.OutcomeCounter = (*Backend)(nil)
)

// Open returns a handle on a data plane.
func Open(k *Kernel) *Backend { return &Backend{kernel: k, rejected: map[plan.Key]error{}} }

// Caps returns those of the Kernel.
func (b *Backend) Caps() plan.Caps { return b.kernel.caps }

// Apply sends one message for each frontend that differs. A message replaces a whole frontend, so after a failure each
// frontend has its old or its new state. Frontends are added first and deleted last. Those that the Kernel rejects are
// reported in a backend.PartialError, and tried again by an empty delta.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.closed {
		return backend.Report{}, ErrClosed
	}
	k := b.kernel
	k.count(func(s *Stats) { s.Applies++ })
	if d != nil && d.Empty() && len(b.rejected) > 0 {
		d = &plan.Delta{}
		for key := range b.rejected {
			d.Changes = append(d.Changes, plan.Change{Key: key, New: next.Frontends[key]})
		}
	}
	var want *plan.Delta
	if d == nil {
		clear(b.rejected)
		want = plan.Diff(k.plan(), k.strip(next))
	} else {
		want = k.stripDelta(d)
	}
	for _, c := range want.Changes {
		if d == nil && c.New == nil && c.Key.Protocol == model.UDP {
			b.removedUDP = append(b.removedUDP, c.Key)
		}
	}
	var r backend.Report
	retried := false
	for _, m := range order(want) {
		if f := m.change.New; f != nil {
			if err := k.rejection(f.Key); err != nil {
				b.rejected[f.Key], retried = fmt.Errorf("fake: %s %s: %w", m.verb, m.what, err), true
				continue
			}
		}
		delete(b.rejected, m.change.Key)
		if err := k.send(ctx, m, &r); err != nil {
			return r, err
		}
	}
	if err := k.sweep(ctx, &r); err != nil {
		return r, err
	}
	return r, b.partialError(retried)
}

// RemovedUDP implements backend.UDPRemover.
func (b *Backend) RemovedUDP() []plan.Key {
	removed := b.removedUDP
	b.removedUDP = nil
	return removed
}

// partialError returns a backend.PartialError if frontends were rejected.
func (b *Backend) partialError(retried bool) error {
	if len(b.rejected) == 0 {
		return nil
	}
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(b.rejected), plan.Key.Compare) {
		errs = append(errs, b.rejected[k])
	}
	return &backend.PartialError{Frontends: len(errs), Retried: retried, Err: errors.Join(errs...), Failed: maps.Clone(b.rejected)}
}

// Read returns the plan that the Kernel is programmed with.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	if b.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fake: read: %w", err)
	}
	b.kernel.count(func(s *Stats) { s.Reads++ })
	return b.kernel.plan(), nil
}

// Close releases the Kernel, which keeps forwarding. It is idempotent.
func (b *Backend) Close() error {
	b.closed = true
	return nil
}

// Cleanup removes sluice's table from a data plane. Established connections continue.
func Cleanup(ctx context.Context, k *Kernel) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("fake: cleanup: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tables, Name)
	k.leftovers = nil
	clear(k.sticky)
	clear(k.outcomes)
	return nil
}

// message changes the global part or a frontend, or removes leftovers.
type message struct {
	verb   string // add, replace, delete, set, sweep
	what   string // the object, for errors
	global *plan.Global
	change plan.Change
}

// order returns the messages of a delta, make before break: add, replace, global part, delete.
func order(d *plan.Delta) []message {
	var out []message
	for _, c := range d.Changes {
		switch {
		case c.Old == nil:
			out = append(out, message{verb: "add", change: c})
		case c.New != nil:
			out = append(out, message{verb: "replace", change: c})
		default:
			out = append(out, message{verb: "delete", change: c})
		}
	}
	if d.Global != nil {
		out = append(out, message{verb: "set", what: "the global part", global: d.Global})
	}
	rank := map[string]int{"add": 0, "replace": 1, "set": 2, "delete": 3}
	slices.SortStableFunc(out, func(a, b message) int { return rank[a.verb] - rank[b.verb] })
	for i := range out {
		if m := &out[i]; m.global == nil {
			f := m.change.New
			if f == nil {
				f = m.change.Old
			}
			m.what = f.Key.String() + " of " + f.Owner.String()
		}
	}
	return out
}

// elements returns the number of endpoints and frontends that a message adds or deletes.
func (m *message) elements() int {
	if m.global != nil || m.change.Key == (plan.Key{}) {
		return 1
	}
	var pools, outside [2][]plan.Endpoint
	for i, f := range []*plan.Frontend{m.change.Old, m.change.New} {
		if f == nil {
			continue
		}
		pools[i] = f.Pool.Endpoints
		if f.Outside != nil {
			outside[i] = f.Outside.Endpoints
		}
	}
	return 1 + differing(pools[0], pools[1]) + differing(outside[0], outside[1]) // the frontend has an entry of its own
}

// differing returns how many endpoints are in one of two lists only, or more often than in the other one.
func differing(a, b []plan.Endpoint) (n int) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	balance := map[plan.Endpoint]int{}
	for _, e := range a {
		balance[e]--
	}
	for _, e := range b {
		balance[e]++
	}
	for _, by := range balance {
		if by != 0 {
			n++
		}
	}
	return n
}

// Stats counts the operations of a Kernel.
type Stats struct{ Applies, Reads, OutcomeReads, Messages, Elements int }

// Fault makes a message fail.
type Fault struct {
	// At is the message to fail, counted from Inject across Applies; 1 is the next one.
	At  int
	Err error
	// Lost lets the message take effect and loses only its reply, like ENOBUFS after a netlink commit.
	Lost bool
}

// leftover is state that make-before-break has left behind.
type leftover struct {
	key plan.Key
	due time.Time
}
