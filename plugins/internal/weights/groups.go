package weights

// Million is the unit of shares. Integers, because a plan must be the same on every machine.
const Million = 1_000_000

// MaxWeight is the largest weight of an endpoint.
const MaxWeight = 65535

// maxMultiplier bounds the search.
const maxMultiplier = 1000

// Group is a set of endpoints that keep the ratios of their weights: all are multiplied by the same factor.
type Group struct {
	Capacity   uint64 // sum of the weights of its endpoints
	Share      uint64 // of new connections that the group should get, in millionths
	Slack      uint64 // accepted deviation from Share, in millionths
	Multiplier uint64
}

// Groups are the groups of a pool. Those without capacity have the multiplier 0.
type Groups []Group

// Limits bound the weights that ChooseMultipliers finds.
type Limits struct {
	MaxTotal uint64 // sum of all weights
	Largest  uint64 // weight of an endpoint before it is multiplied
	Least    uint64 // multiplier of a group with a share
}

// ChooseMultipliers finds small integers that give the groups their shares: the smallest within the slack, or else the closest
// whose sum over all endpoints is at most MaxTotal. At least one group must have capacity and a share.
func (g Groups) ChooseMultipliers(l Limits) {
	top := -1 // the group with the largest share per capacity
	for i := range g {
		if g[i].Capacity > 0 && (top < 0 || g[i].Share*g[top].Capacity > g[top].Share*g[i].Capacity) {
			top = i
		}
	}
	best, least := uint64(1), ^uint64(0)
	for n := uint64(1); n <= maxMultiplier; n++ {
		total := g.set(top, n, l.Least)
		if n > 1 && (total > l.MaxTotal || n*l.Largest > MaxWeight) {
			break
		}
		off := g.excess(total)
		if off < least {
			best, least = n, off
		}
		if off == 0 {
			break
		}
	}
	g.set(top, best, l.Least)
}

// set sets the multiplier of group top to n and the others in proportion, and returns the sum of all weights.
func (g Groups) set(top int, n, least uint64) (total uint64) {
	t := g[top]
	for i := range g {
		z := &g[i]
		z.Multiplier = 0
		if z.Capacity > 0 && z.Share > 0 {
			per := t.Share * z.Capacity
			z.Multiplier = max(least, (n*z.Share*t.Capacity+per/2)/per)
		}
		total += z.Multiplier * z.Capacity
	}
	return total
}

// excess returns the largest deviation of a group from its share beyond its slack, in millionths.
func (g Groups) excess(total uint64) (most uint64) {
	for i := range g {
		if off := g[i].off(total); off > g[i].Slack {
			most = max(most, off-g[i].Slack)
		}
	}
	return most
}

// MaxError returns the largest deviation of a group from its share, in millionths. total is that of Total, and not 0.
func (g Groups) MaxError(total uint64) (most uint64) {
	for i := range g {
		most = max(most, g[i].off(total))
	}
	return most
}

func (z *Group) off(total uint64) uint64 {
	got := z.Multiplier * z.Capacity * Million / total
	return max(got, z.Share) - min(got, z.Share)
}

// Total returns the sum of all weights.
func (g Groups) Total() (total uint64) {
	for i := range g {
		total += g[i].Multiplier * g[i].Capacity
	}
	return total
}

// Percent returns the share that the multiplier gives to group i, in percent, rounded.
func (g Groups) Percent(i int) uint64 {
	total := g.Total()
	if total == 0 {
		return 0
	}
	return (g[i].Multiplier*g[i].Capacity*200 + total) / (2 * total)
}
