// Package cost counts the work of planning in units of about 0.15 µs, measured on one core, so that one Plan, and a Service's
// turn in it, can be bounded without a clock.
package cost

// Look is the cost of looking at an endpoint or an EndpointSlice, Frontend of building and comparing a frontend. The backend says
// what programming costs, see plan.Caps.Step.
const (
	Look     = 1
	Frontend = 8
)

// Budget is the work that may still be done; nil is unlimited.
type Budget struct {
	Left int
	Turn int // how much one Service may use before it is another one's turn
}

// Spent reports whether nothing is left.
func (b *Budget) Spent() bool { return b != nil && b.Left <= 0 }

// Spend takes a cost off.
func (b *Budget) Spend(cost int) {
	if b != nil {
		b.Left -= cost
	}
}

// Add adds to the budget, and returns it.
func (b *Budget) Add(cost int) *Budget {
	if b != nil {
		b.Left += cost
	}
	return b
}

// Begin returns the budget of the turn of a Service, for End to take off. It may be more than what is left: the rest of a Plan
// would otherwise go to Services that it does not suffice for.
func (b *Budget) Begin() *Budget {
	if b == nil {
		return nil
	}
	return &Budget{Left: b.Turn}
}

// End takes off what a turn has used.
func (b *Budget) End(turn *Budget) { b.Spend(b.Used(turn)) }

// Used returns what a turn has used.
func (b *Budget) Used(turn *Budget) int {
	if b == nil {
		return 0
	}
	return b.Turn - turn.Left
}
