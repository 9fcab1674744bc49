package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// Caps is what a backend can hold. It is constant after the backend is open.
type Caps struct {
	Name string // nftables, ipvs, fake
	// Ratios: only the ratio of weights is held, in lowest terms, and their sum is at most
	// max(MaxTotal, number of endpoints). Otherwise weights are held as they are.
	Ratios   bool
	MaxTotal int
	// ZeroWeight: endpoints of weight 0 are held, with their phase told by their weight.
	ZeroWeight bool
	// Balances and Protocols that can be held; the first Balance stands in for the others.
	Balances  []Balance
	Protocols []model.Protocol
	// MaxAffinity is the longest affinity time-out; 0: any.
	MaxAffinity time.Duration
}

// Degradation is something that a plan wants and a backend cannot hold.
type Degradation struct {
	Frontend Key
	Owner    model.PortName
	Wanted   string
	Got      string
	Why      string
}

// String is one line for people.
func (d Degradation) String() string {
	return fmt.Sprintf("%s %s: wanted %s, got %s: %s", d.Owner, d.Frontend, d.Wanted, d.Got, d.Why)
}

// Normalize gives what a backend of these capabilities holds of p, and what is lost on the way. It is idempotent, and
// shares with p whatever it does not change.
func Normalize(p *Plan, c Caps) (*Plan, []Degradation) {
	out := &Plan{Global: p.Global, Frontends: make(map[Key]*Frontend, len(p.Frontends))}
	var lost []Degradation
	for _, k := range p.Keys() {
		f, d := NormalizeFrontend(p.Frontends[k], c)
		lost = append(lost, d...)
		if f != nil {
			out.Frontends[k] = f
		}
	}
	return out, lost
}

// NormalizeFrontend is Normalize for one frontend: nil when the backend cannot hold it at all, f itself when it is
// held as it is.
func NormalizeFrontend(f *Frontend, c Caps) (*Frontend, []Degradation) {
	var lost []Degradation
	lose := func(wanted, got, why string) {
		lost = append(lost, Degradation{f.Key, f.Owner, wanted, got, c.Name + ": " + why})
	}
	if !slices.Contains(c.Protocols, f.Key.Protocol) {
		lose(f.Key.Protocol.String(), "no frontend", "the protocol is not supported")
		return nil, lost
	}
	if slices.Contains(c.Balances, f.Balance) && (c.MaxAffinity == 0 || f.Affinity <= c.MaxAffinity) &&
		c.normal(&f.Pool) && (f.Outside == nil || c.normal(f.Outside)) {
		return f, nil
	}
	out := *f
	if !slices.Contains(c.Balances, f.Balance) {
		lose("balance "+f.Balance.String(), "balance "+c.Balances[0].String(), "the data plane cannot balance this way")
		out.Balance = c.Balances[0]
	}
	if c.MaxAffinity > 0 && f.Affinity > c.MaxAffinity {
		lose("affinity "+f.Affinity.String(), "affinity "+c.MaxAffinity.String(), "the time-out is too long")
		out.Affinity = c.MaxAffinity
	}
	var rounded bool
	out.Pool, rounded = normalizePool(f.Pool, c)
	if f.Outside != nil {
		o, r := normalizePool(*f.Outside, c)
		out.Outside, rounded = &o, rounded || r
	}
	if rounded {
		lose("exact weights", fmt.Sprintf("weights rounded to a sum of %d", c.MaxTotal),
			"a pool has that many slots")
	}
	if out.Equal(f) {
		return f, lost
	}
	return &out, lost
}

// normal tells whether a pool is held as it is. It is what nearly all are, and costs nothing to find out.
func (c *Caps) normal(p *Pool) bool {
	sum, g, n := lowest(p.Endpoints)
	for i := range p.Endpoints {
		m := &p.Endpoints[i]
		switch {
		case m.Deadline != 0:
			return false
		case m.Weight > 0 && m.Phase != Active:
			return false
		case m.Weight == 0 && (!c.ZeroWeight || m.Phase != Draining):
			return false
		}
	}
	return !c.Ratios || g <= 1 && sum <= max(c.MaxTotal, n)
}

func normalizePool(p Pool, c Caps) (_ Pool, rounded bool) {
	if len(p.Endpoints) > 0 && c.normal(&p) {
		return p, false
	}
	if len(p.Endpoints) == 0 {
		return Pool{Verdict: p.Verdict}, false
	}
	endpoints := make([]Endpoint, 0, len(p.Endpoints))
	for _, m := range p.Endpoints {
		if m.Weight == 0 && !c.ZeroWeight {
			continue
		}
		n := Endpoint{Addr: m.Addr, Weight: m.Weight}
		if m.Weight == 0 {
			n.Phase = Draining
		}
		endpoints = append(endpoints, n)
	}
	if c.Ratios {
		rounded = reduce(endpoints, c.MaxTotal)
	}
	if len(endpoints) == 0 {
		endpoints = nil
	}
	return Pool{Verdict: p.Verdict, Endpoints: endpoints}, rounded
}

// reduce brings weights to lowest terms, and their sum to at most max(limit, endpoints with weight) by largest
// remainder, every positive weight staying at least 1. It tells whether it had to round.
func reduce(endpoints []Endpoint, limit int) (rounded bool) {
	sum, g, n := lowest(endpoints)
	if n == 0 {
		return false
	}
	limit = max(limit, n)
	if sum/g > limit {
		round(endpoints, limit)
		rounded = true
		_, g, _ = lowest(endpoints)
	}
	for i := range endpoints {
		endpoints[i].Weight /= uint16(g)
	}
	return rounded
}

func lowest(endpoints []Endpoint) (sum, g, n int) {
	for _, m := range endpoints {
		if m.Weight > 0 {
			sum, g, n = sum+int(m.Weight), gcd(g, int(m.Weight)), n+1
		}
	}
	return sum, g, n
}

// round shares limit slots out by weight: whoever would get less than one gets one, the others share the rest by
// largest remainder; ties go to the lower address.
func round(endpoints []Endpoint, limit int) {
	type part struct {
		index     int
		weight    uint64
		remainder uint64
	}
	var parts []part
	var sum uint64
	for i, m := range endpoints {
		if m.Weight > 0 {
			parts = append(parts, part{index: i, weight: uint64(m.Weight)})
			sum += uint64(m.Weight)
		}
	}
	left := uint64(limit)
	for again := true; again; {
		again = false
		kept := parts[:0]
		restSum, restLeft := sum, left
		for _, p := range parts {
			if p.weight*left < sum {
				endpoints[p.index].Weight = 1
				restSum, restLeft, again = restSum-p.weight, restLeft-1, true
				continue
			}
			kept = append(kept, p)
		}
		parts, sum, left = kept, restSum, restLeft
	}
	given := uint64(0)
	for i := range parts {
		p := &parts[i]
		q := p.weight * left / sum
		p.remainder = p.weight * left % sum
		endpoints[p.index].Weight = uint16(q)
		given += q
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.remainder, a.remainder) })
	for _, p := range parts[:left-given] {
		endpoints[p.index].Weight++
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
