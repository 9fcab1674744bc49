package planner

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// The cost of planning and programming in units of about 0.15 µs, measured on one core: looking at an endpoint or an
// EndpointSlice is one, building and comparing a frontend some 8, and changing a frontend or an endpoint in the kernel 50.
const (
	lookCost     = 1
	frontendCost = 8
	elementCost  = 50
)

// entryChanges is how many elements of the kernel's sets make a frontend known, beside its slots.
const entryChanges = 3

// callCost is the cost of calling a plugin and recording its answer, requestCost that of building the requests of a chain and comparing
// them with those that have been answered, for each pool and for each of its endpoints.
const (
	callCost        = 100
	requestCost     = 60
	requestCostEach = 6
)

// A Plan does about Planner.stepCost of work, which follows the duration of steps, see AdaptStep.
const (
	minStepCost = 2_000
	maxStepCost = 10_000
)

// targetStepTime is how long a step (planning and programming) may take that does as much as a Plan allows. A change that arrives
// meanwhile waits for its end, and is then programmed first.
const targetStepTime = 1500 * time.Microsecond

// AdaptStep adapts how much a Plan does to the duration of the last step, planning and programming.
func (p *Planner) AdaptStep(took time.Duration) {
	switch {
	case !p.full: // its duration says nothing about larger ones
	case took > targetStepTime:
		p.stepCost = max(p.stepCost*3/4, minStepCost)
	case took < targetStepTime/2:
		p.stepCost = min(p.stepCost*5/4, maxStepCost)
	}
}

// PlanInBatches bounds the duration of a Plan, see AdaptStep. The first one does everything. When Services remain, Result.RequeueAt is
// now.
func (p *Planner) PlanInBatches() { p.inBatches = true }

// budget is the work that may still be done; nil is unlimited.
type budget struct {
	left int
	turn int // how much one Service may use before it is another one's turn
}

func (b *budget) spent() bool { return b != nil && b.left <= 0 }

func (b *budget) spend(cost int) {
	if b != nil {
		b.left -= cost
	}
}

// add adds to the budget, and returns it.
func (b *budget) add(cost int) *budget {
	if b != nil {
		b.left += cost
	}
	return b
}

// begin returns the budget of the turn of a Service, for end to take off. It may be more than what is left: the rest of a Plan would
// otherwise go to Services that it does not suffice for.
func (b *budget) begin() *budget {
	if b == nil {
		return nil
	}
	return &budget{left: b.turn}
}

func (b *budget) end(turn *budget) {
	if b != nil {
		b.left -= b.used(turn)
	}
}

// used returns what a turn has used.
func (b *budget) used(turn *budget) int {
	if b == nil {
		return 0
	}
	return b.turn - turn.left
}

// change spends the cost of changing a frontend of the plan; nil is none.
func (b *budget) change(old, f *plan.Frontend) {
	if b == nil || old == f {
		return
	}
	n := 1
	if old == nil || f == nil {
		n = entryChanges
	}
	old, f = cmp.Or(old, noFrontend), cmp.Or(f, noFrontend)
	n += slotChanges(&old.Pool, &f.Pool)
	if old.Outside != nil || f.Outside != nil {
		n += slotChanges(orEmpty(old.Outside), orEmpty(f.Outside))
	}
	n += rangeChanges(old.SourceRanges, f.SourceRanges)
	d := listed(old) - listed(f)
	b.left -= (n + max(d, -d)) * elementCost
}

// listed returns how many elements the endpoints of a frontend have beside their slots.
func listed(f *plan.Frontend) int {
	each := 0
	if f.Affinity > 0 {
		each += 2
	}
	if f.Outcomes {
		each += 3
	}
	return each * (len(f.Pool.Endpoints) + len(orEmpty(f.Outside).Endpoints))
}

// rangeChanges returns how many source ranges are added and deleted. Both lists are sorted.
func rangeChanges(old, list []netip.Prefix) (n int) {
	for len(old) > 0 && len(list) > 0 {
		order := old[0].Compare(list[0])
		if order <= 0 {
			old = old[1:]
		}
		if order >= 0 {
			list = list[1:]
		}
		if order != 0 {
			n++
		}
	}
	return n + len(old) + len(list)
}

// equal reports whether two frontends are equal, and spends the cost of comparing them.
func (b *budget) equal(f, g *plan.Frontend) bool {
	b.spend(frontendCost + (len(f.Pool.Endpoints)+len(f.SourceRanges))*lookCost)
	return f.Equal(g)
}

// noPool is a pool that does not exist; read-only.
var noPool = &plan.Pool{}

func orEmpty(p *plan.Pool) *plan.Pool { return cmp.Or(p, noPool) }

// slotChanges returns how many slots of a backend differ, about, and counts one for each endpoint whose weight differs otherwise: a change
// of a few weights can be one of a thousand slots.
func slotChanges(p, q *plan.Pool) (n int) {
	had, has := plan.SlotsOf(p, plan.MaxSlots), plan.SlotsOf(q, plan.MaxSlots)
	weighted := !had.One() || !has.One()
	for a, b := range plan.Pairs(p, q) {
		d := had.Of(a.Weight) - has.Of(b.Weight)
		if d = max(d, -d); d == 0 && a.Weight != b.Weight && weighted || a.Addr != b.Addr {
			d++ // a new endpoint has more than slots
		}
		n += d
	}
	return n
}
