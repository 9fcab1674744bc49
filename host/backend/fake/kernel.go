package fake

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Options configures a Kernel. The zero value is usable.
type Options struct {
	// Caps are its capabilities; Everything() if Caps.Name is empty.
	Caps plan.Caps
	// NodeAddrs are the addresses of the node, except loopback addresses.
	NodeAddrs []netip.Addr
	// Seed of random choices: the same seed and calls have the same results.
	Seed uint64
	// Now is the clock of session affinity and leftovers; nil: a clock that only Advance moves.
	Now func() time.Time
	// Linger is how long replaced and deleted state remains, as with backends that make before they break: Apply then
	// asks to be requeued to remove it. It does not affect forwarding.
	Linger time.Duration
}

// Kernel is an in-memory data plane. It is safe for concurrent use.
type Kernel struct {
	caps plan.Caps
	o    Options

	mu        sync.Mutex
	now       time.Time
	tables    map[string]*plan.Plan // sluice's table and foreign ones
	leftovers []leftover
	fault     *Fault
	rejects   map[plan.Key]error
	sent      int // messages since Inject
	fired     bool
	stats     Stats
	forwarding
}

// NewKernel returns an empty data plane.
func NewKernel(o Options) *Kernel {
	k := &Kernel{caps: o.Caps, o: o, now: time.Unix(0, 0), tables: map[string]*plan.Plan{}, rejects: map[plan.Key]error{}}
	if k.caps.Name == "" {
		k.caps = Everything()
	}
	k.forwarding = forwarding{
		rng: rand.New(rand.NewPCG(o.Seed, 0xfa4e)), flows: map[tuple]*Conn{}, unreplied: map[tuple]*Conn{}, load: map[netip.AddrPort]int{},
		sticky: map[affinityKey]affinityEntry{}, turns: map[turn]int64{},
		outcomes: map[model.EndpointKey]backend.OutcomeCounters{}, responses: map[model.EndpointKey]Response{},
	}
	return k
}

// Advance moves the Kernel's own clock. With Options.Now it does nothing.
func (k *Kernel) Advance(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = k.now.Add(d)
}

func (k *Kernel) clock() time.Time {
	if k.o.Now != nil {
		return k.o.Now()
	}
	return k.now
}

// Inject makes a message fail. It replaces a fault that has not fired. disarm removes the fault and reports whether it
// fired.
func (k *Kernel) Inject(f Fault) (disarm func() bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.sent, k.fired = &f, 0, false
	return func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fault = nil
		return k.fired
	}
}

// Reject makes the Kernel refuse a frontend with an error, until it is called with nil.
func (k *Kernel) Reject(key plan.Key, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rejects[key] = err; err == nil {
		delete(k.rejects, key)
	}
}

func (k *Kernel) rejection(key plan.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rejects[key]
}

// Stats returns the counts since NewKernel.
func (k *Kernel) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

// Leftovers returns the number of frontends with leftovers.
func (k *Kernel) Leftovers() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.leftovers)
}

// Edit changes a table as another process would. Editing the table Name creates drift; any other table is foreign, does
// not affect forwarding, and must not be modified by sluice. Frontends must be replaced, not changed in place.
func (k *Kernel) Edit(table string, f func(*plan.Plan)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.table(table))
}

// Table returns a copy of a table and whether it exists.
func (k *Kernel) Table(name string) (*plan.Plan, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.tables[name]
	if p == nil {
		return &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}, false
	}
	return &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}, true
}

func (k *Kernel) plan() *plan.Plan {
	p, _ := k.Table(Name)
	return p
}

// table returns a table for modification, creating it if necessary.
func (k *Kernel) table(name string) *plan.Plan {
	if k.tables[name] == nil {
		k.tables[name] = &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}
	}
	return k.tables[name]
}

// strip returns a plan as the Kernel has it.
func (k *Kernel) strip(p *plan.Plan) *plan.Plan {
	out := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
	for key, f := range out.Frontends {
		out.Frontends[key] = k.caps.Strip(f)
	}
	return out
}

// stripDelta returns the part of a delta that differs from the current state, as the Kernel has it.
func (k *Kernel) stripDelta(d *plan.Delta) *plan.Delta {
	k.mu.Lock()
	defer k.mu.Unlock()
	current := &plan.Plan{}
	if p := k.tables[Name]; p != nil {
		current = p
	}
	out := &plan.Delta{}
	if d.Global != nil && !current.Global.Equal(d.Global) {
		out.Global = d.Global
	}
	for _, c := range d.Changes {
		c.Old = current.Frontends[c.Key]
		if c.New != nil {
			c.New = k.caps.Strip(c.New)
		}
		if c.Old != c.New && (c.Old == nil || c.New == nil || !c.Old.Equal(c.New)) {
			out.Changes = append(out.Changes, c)
		}
	}
	return out
}

// send executes a message, unless a fault is due.
func (k *Kernel) send(ctx context.Context, m message, r *backend.Report) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("fake: %s %s: %w", m.verb, m.what, err)
	}
	r.Messages++
	k.stats.Messages++
	k.sent++
	var failure error
	if f := k.fault; f != nil && k.sent == f.At {
		k.fault, k.fired = nil, true
		failure = fmt.Errorf("fake: %s %s: %w", m.verb, m.what, f.Err)
		if !f.Lost {
			return failure
		}
	}
	n := m.elements()
	r.Elements += n
	k.stats.Elements += n
	k.do(m)
	return failure
}

func (k *Kernel) do(m message) {
	switch {
	case m.global != nil:
		k.table(Name).Global = *m.global
	case m.verb == "sweep":
		k.leftovers = nil
	default:
		t := k.table(Name)
		t.Apply(&plan.Delta{Changes: []plan.Change{m.change}})
		maps.DeleteFunc(k.turns, func(t turn, _ int64) bool { return t.frontend == m.change.Key })
		if m.change.Old != nil {
			if k.o.Linger > 0 {
				k.leftovers = append(k.leftovers, leftover{m.change.Key, k.clock().Add(k.o.Linger)})
			}
			k.deleteStaleAffinity(t, m.change.Old.Owner)
			if m.change.Old.Outcomes {
				k.forgetOutcomes()
			}
		}
	}
}

// sweep removes leftovers if all of them are due, and otherwise asks to be requeued.
func (k *Kernel) sweep(ctx context.Context, r *backend.Report) error {
	k.mu.Lock()
	n := len(k.leftovers)
	if n == 0 {
		k.mu.Unlock()
		return nil
	}
	wait := k.leftovers[n-1].due.Sub(k.clock()) // the newest is last
	k.mu.Unlock()
	if wait > 0 {
		r.RequeueAfter = wait
		return nil
	}
	return k.send(ctx, message{verb: "sweep", what: fmt.Sprintf("%d leftovers", n)}, r)
}

func (k *Kernel) count(f func(*Stats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.stats)
}
