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
	"github.com/sluice-proxy/sluice/host/plan"
)

// Options of a Kernel. The zero value is a good one.
type Options struct {
	// Caps are what it can hold; those of Everything when Caps.Name is "".
	Caps plan.Caps
	// NodeAddrs are the addresses of the node itself; loopback needs no mention.
	NodeAddrs []netip.Addr
	// Seed of the random choices: the same seed and calls give the same answers.
	Seed uint64
	// Now is the clock of session affinity and leftovers; nil: one that stands still but for Advance.
	Now func() time.Time
	// Linger is how long what was replaced or deleted stays behind, as with backends that make before they break:
	// Apply then asks for another one to take it away. It changes nothing in where connections go.
	Linger time.Duration
}

// Kernel is a data plane in memory. All methods may be called from several goroutines.
type Kernel struct {
	caps plan.Caps
	o    Options

	mu        sync.Mutex
	now       time.Time
	tables    map[string]*plan.Plan // sluice's, and others that it must not touch
	leftovers []leftover
	fault     *Fault
	sent      int // messages since Inject
	fired     bool
	stats     Stats
	forwarding
}

// NewKernel makes an empty data plane.
func NewKernel(o Options) *Kernel {
	k := &Kernel{caps: o.Caps, o: o, now: time.Unix(0, 0), tables: map[string]*plan.Plan{}}
	if k.caps.Name == "" {
		k.caps = Everything()
	}
	k.forwarding = forwarding{
		rng: rand.New(rand.NewPCG(o.Seed, 0xfa4e)), flows: map[tuple]*Conn{}, load: map[netip.AddrPort]int{},
		sticky: map[client]stick{}, turns: map[turn]int64{},
	}
	return k
}

// Advance moves the Kernel's own clock; with Options.Now it does nothing.
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

// Inject makes a message fail. It replaces a fault that has not fired. The function takes it away again and tells
// whether it fired.
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

// Stats gives the counts since the beginning.
func (k *Kernel) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

// Leftovers is how many frontends' remains wait to be taken away.
func (k *Kernel) Leftovers() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.leftovers)
}

// Edit changes what sluice's table holds behind the back of any Backend: drift, to be found and repaired. Frontends
// are to be replaced, not changed in place. Editing the table named Name is the same as another program doing so; any
// other table is one that sluice must leave alone and that no connection goes by.
func (k *Kernel) Edit(table string, f func(*plan.Plan)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.table(table))
}

// Table gives a copy of what a table holds, and whether there is one.
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

// table gives a table for changing, making it when it is missing.
func (k *Kernel) table(name string) *plan.Plan {
	if k.tables[name] == nil {
		k.tables[name] = &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}
	}
	return k.tables[name]
}

// normalize turns a delta into what has to be sent: only what differs from what is there.
func (k *Kernel) normalize(d *plan.Delta) *plan.Delta {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := &plan.Plan{}
	if p := k.tables[Name]; p != nil {
		held = p
	}
	out := &plan.Delta{}
	if d.Global != nil && !held.Global.Equal(d.Global) {
		out.Global = d.Global
	}
	for _, c := range d.Changes {
		c.Old = held.Frontends[c.Key]
		if c.New != nil {
			c.New, _ = plan.NormalizeFrontend(c.New, k.caps)
		}
		if c.Old != c.New && (c.Old == nil || c.New == nil || !c.Old.Equal(c.New)) {
			out.Changes = append(out.Changes, c)
		}
	}
	return out
}

// send does what a message says, unless a fault is due.
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
			k.unstick(t, m.change.Old.Owner)
		}
	}
}

// sweep takes leftovers away when all of them are due, and otherwise says when they are.
func (k *Kernel) sweep(ctx context.Context, r *backend.Report) error {
	k.mu.Lock()
	n := len(k.leftovers)
	if n == 0 {
		k.mu.Unlock()
		return nil
	}
	wait := k.leftovers[n-1].due.Sub(k.clock()) // the youngest comes last
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
