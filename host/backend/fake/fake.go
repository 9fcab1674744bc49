// Package fake is a data plane in memory, with the backend that programs it: the twin of the real ones, for tests of
// the engine, for scripts and for trying a policy without a kernel.
//
// A Kernel holds a plan and forwards connections by it, with session affinity, masquerading and established
// connections that outlive changes. A Backend is a handle on a Kernel, as a netlink socket is on the real one: closing
// it changes nothing, and a new handle finds what the last one left. Messages can be made to fail.
//
// It is not a model of speed, of packet loss or of any kernel's peculiarities: what depends on those belongs in the
// tests of the real backends. It has no network; it says where a connection would go.
package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Name of the backend, and of its table in a Kernel.
const Name = "sluice"

// ErrClosed is what a Backend answers after Close.
var ErrClosed = errors.New("fake: the backend is closed")

// Everything are the capabilities of a Kernel that holds all that a plan can say.
func Everything() plan.Caps {
	return plan.Caps{
		Name: "fake", Idle: true,
		Balances:  []plan.Balance{plan.Random, plan.RoundRobin, plan.SourceHash, plan.LeastConnections},
		Protocols: []model.Protocol{model.TCP, model.UDP, model.SCTP},
	}
}

// Backend is a handle on a Kernel. It implements backend.Backend.
type Backend struct {
	kernel *Kernel
	closed bool
}

var _ backend.Backend = (*Backend)(nil)

// Open gives a handle on a data plane.
func Open(k *Kernel) *Backend { return &Backend{kernel: k} }

// Caps are those of the Kernel.
func (b *Backend) Caps() plan.Caps { return b.kernel.caps }

// Apply sends one message for each frontend that differs, each of which replaces a frontend whole, so that at any
// failure each is as it was or as it shall be. What is new comes first and what goes comes last.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.closed {
		return backend.Report{}, ErrClosed
	}
	k := b.kernel
	k.count(func(s *Stats) { s.Applies++ })
	var want *plan.Delta
	if d == nil {
		whole, _ := plan.Normalize(next, k.caps)
		want = plan.Diff(k.plan(), whole)
	} else {
		want = k.normalize(d)
	}
	var r backend.Report
	for _, m := range order(want) {
		if err := k.send(ctx, m, &r); err != nil {
			return r, err
		}
	}
	return r, k.sweep(ctx, &r)
}

// Read gives the plan that the Kernel holds.
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

// Close lets go of the Kernel, which goes on forwarding. Closing twice is harmless.
func (b *Backend) Close() error {
	b.closed = true
	return nil
}

// Cleanup takes everything of sluice's out of a data plane, and nothing else. Established connections go on.
func Cleanup(ctx context.Context, k *Kernel) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("fake: cleanup: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tables, Name)
	k.leftovers = nil
	clear(k.sticky)
	return nil
}

// message is one change of the data plane: of the global part, of a frontend, or the removal of leftovers.
type message struct {
	verb   string // add, replace, delete, set, sweep
	what   string // the object, for errors
	global *plan.Global
	change plan.Change
}

// order is make before break: what is added, what is replaced, the global part, what is deleted.
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

// elements are the members and frontends that a message adds or deletes.
func (m *message) elements() int {
	if m.global != nil || m.change.Key == (plan.Key{}) {
		return 1
	}
	type slot struct {
		outside bool
		plan.Member
	}
	list := map[slot]int{}
	add := func(f *plan.Frontend, by int) {
		if f == nil {
			return
		}
		for _, x := range f.Pool.Members {
			list[slot{false, x}] += by
		}
		if f.Outside != nil {
			for _, x := range f.Outside.Members {
				list[slot{true, x}] += by
			}
		}
	}
	add(m.change.Old, -1)
	add(m.change.New, 1)
	n := 1 // the frontend's own entry
	for _, by := range list {
		if by != 0 {
			n++
		}
	}
	return n
}

// Stats count what a Kernel was asked.
type Stats struct{ Applies, Reads, Messages, Elements int }

// Fault makes a message fail.
type Fault struct {
	// At counts messages from the moment of Inject, over several Applies: 1 is the next one.
	At  int
	Err error
	// Lost: the message takes effect and only its answer is lost, as with ENOBUFS after a netlink commit.
	Lost bool
}

// leftover is what make-before-break left behind.
type leftover struct {
	key plan.Key
	due time.Time
}
