package plan

import (
	"fmt"
	"slices"
)

// Degraded is a frontend as it was wanted, of which a backend cannot represent something.
type Degraded struct {
	Wanted  *Frontend // not degraded itself
	by      *Caps
	rounded bool // weights
}

func (d *Degraded) equal(e *Degraded) bool {
	return d == e || d != nil && e != nil && d.by.Name == e.by.Name && d.rounded == e.rounded && d.Wanted.Equal(e.Wanted)
}

// Degradations returns what the backend cannot represent of a frontend; nil is no frontend.
func (f *Frontend) Degradations() (lost []Degradation) {
	if f == nil || f.Degraded == nil {
		return nil
	}
	w, c := f.Degraded.Wanted, f.Degraded.by
	lose := func(wanted, got, why string) {
		lost = append(lost, Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: wanted, Got: got, Why: c.Name + ": " + why})
	}
	if f.Balance != w.Balance {
		lose("balance "+w.Balance.String(), "balance "+f.Balance.String(), "the data plane does not support it")
	}
	if f.Affinity != w.Affinity {
		lose("affinity "+w.Affinity.String(), "affinity "+f.Affinity.String(), "the timeout is rounded up, to bound the number of different ones")
	}
	if f.Outcomes != w.Outcomes {
		lose("outcomes counted", "outcomes not counted", "the data plane does not count them")
	}
	if f.LongLived != w.LongLived {
		lose("flows offloaded", "flows not offloaded", "the data plane does not forward by flowtables")
	}
	if !c.names(&f.Owner) { // which the plan needs; the backend shortens them
		lose("owner "+f.Owner.String(), "owner "+c.shorten(f.Owner).String(), fmt.Sprintf("names have at most %d bytes", c.MaxName))
	}
	if n := max(len(w.Pool.Endpoints), outsideLen(w)); c.MaxEndpoints > 0 && n > c.MaxEndpoints {
		lose(fmt.Sprintf("%d endpoints", n), fmt.Sprintf("%d endpoints", c.MaxEndpoints), "a pool has at most that many")
	}
	if f.Degraded.rounded {
		lose("exact weights", fmt.Sprintf("weights rounded to a sum of %d", c.maxTotal(f.Balance)), "the weights of a pool have at most that sum")
	}
	return lost
}

// Degradations returns what the backend cannot represent of a plan, by key.
func (p *Plan) Degradations() (out []Degradation) {
	for _, k := range p.Keys() {
		out = append(out, p.Frontends[k].Degradations()...)
	}
	return out
}

// Fitter makes frontends fit a backend. Frontends that share endpoints share those of the results.
type Fitter struct {
	caps  *Caps
	pools []fittedPool // whose endpoints do not fit
}

// fittedPool is the endpoints of a pool and what becomes of them with a bound of the sum of their weights.
type fittedPool struct {
	from, to []Endpoint
	maxTotal int
	rounded  bool
}

// NewFitter returns a Fitter for a backend with these capabilities.
func NewFitter(c *Caps) Fitter { return Fitter{caps: c} }

// Fit returns a plan that fits a backend with these capabilities. It shares with p the frontends of which nothing is lost.
func Fit(p *Plan, c Caps) *Plan {
	x := NewFitter(&c)
	out := &Plan{Global: p.Global, Frontends: make(map[Key]*Frontend, len(p.Frontends))}
	for k, f := range p.Frontends {
		out.Frontends[k] = x.Fit(f)
	}
	return out
}

// Fit returns a frontend that fits the backend, Degraded if need be: the frontend itself if nothing is lost. One that fits
// another backend is fitted as it was wanted.
func (x *Fitter) Fit(f *Frontend) *Frontend {
	if f.Degraded != nil {
		f = f.Degraded.Wanted
	}
	c := x.caps
	if c.fits(f) {
		return f
	}
	out := *f
	if !slices.Contains(c.Balances, f.Balance) {
		out.Balance = c.Balances[0]
	}
	out.Affinity, out.Outcomes, out.LongLived = c.affinity(f.Affinity), f.Outcomes && c.Outcomes, f.LongLived && c.LongLived
	rounded := x.fitPool(&out.Pool, out.Balance)
	if f.Outside != nil {
		outside := *f.Outside
		rounded = x.fitPool(&outside, out.Balance) || rounded
		out.Outside = &outside
	}
	out.Degraded = &Degraded{f, c, rounded}
	return &out
}

// fitPool makes a pool fit the backend, and reports whether it has rounded weights.
func (x *Fitter) fitPool(p *Pool, b Balance) (rounded bool) {
	if x.caps.fitsPool(p, b) {
		return false
	}
	from, maxTotal := p.Endpoints, x.caps.maxTotal(b)
	at := slices.IndexFunc(x.pools, func(o fittedPool) bool {
		return &o.from[0] == &from[0] && len(o.from) == len(from) && o.maxTotal == maxTotal
	})
	if at < 0 {
		o := fittedPool{from: from, maxTotal: maxTotal}
		if m := x.caps.MaxEndpoints; m > 0 && len(from) > m {
			o.to = firstEndpoints(from, m)
		} else {
			o.to = slices.Clone(from)
		}
		if x.caps.Ratios {
			o.rounded = ReduceWeights(o.to, maxTotal)
		}
		at, x.pools = len(x.pools), append(x.pools, o)
	}
	p.Endpoints = x.pools[at].to
	return x.pools[at].rounded
}

func outsideLen(f *Frontend) int {
	if f.Outside == nil {
		return 0
	}
	return len(f.Outside.Endpoints)
}

// firstEndpoints returns the first n endpoints of a pool, those with weight if there are as many.
func firstEndpoints(list []Endpoint, n int) []Endpoint {
	weighted := 0
	for i := range list {
		weighted += min(1, int(list[i].Weight))
	}
	out := make([]Endpoint, 0, n)
	for _, m := range list {
		switch {
		case len(out) == n:
			return out
		case m.Weight == 0 && n-len(out) <= weighted:
			continue
		case m.Weight > 0:
			weighted--
		}
		out = append(out, m)
	}
	return out
}

// Normalize returns a plan as a backend with these capabilities has it, which is what it reads back: what fits it, without what
// it has no place for.
func Normalize(p *Plan, c Caps) *Plan {
	out := Fit(p, c)
	for k, f := range out.Frontends {
		out.Frontends[k] = c.Strip(f)
	}
	return out
}

// Strip returns a frontend that fits a backend as the backend has it: with weights in lowest terms if it has ratios, without
// endpoints of weight 0 if it does not represent them, with short names, and without deadlines, phases of endpoints with weight,
// and Degraded. It is idempotent, and the frontend itself if nothing changes.
func (c *Caps) Strip(f *Frontend) *Frontend { return c.StripInto(new([]Endpoint), f) }

// StripInto is Strip with memory for endpoints: the result is valid until the memory is used again.
func (c *Caps) StripInto(memory *[]Endpoint, f *Frontend) *Frontend {
	if f.Degraded == nil && c.names(&f.Owner) && c.isStripped(&f.Pool) && (f.Outside == nil || c.isStripped(f.Outside)) {
		return f
	}
	*memory = (*memory)[:0]
	out := *f
	out.Owner, out.Degraded, out.Pool = c.shorten(f.Owner), nil, c.stripPool(f.Pool, memory)
	if f.Outside != nil {
		outside := c.stripPool(*f.Outside, memory)
		out.Outside = &outside
	}
	return &out
}

// stripPool appends the endpoints of its result to memory.
func (c *Caps) stripPool(p Pool, memory *[]Endpoint) Pool {
	if c.isStripped(&p) {
		return p
	}
	*memory = slices.Grow(*memory, len(p.Endpoints))
	endpoints := (*memory)[len(*memory):]
	for _, m := range p.Endpoints {
		if m.Weight == 0 && !c.ZeroWeight {
			continue
		}
		n := Endpoint{Addr: m.Addr, Weight: m.Weight, Remote: m.Remote && c.Remote}
		if m.Weight == 0 {
			n.Phase = Draining
		}
		endpoints = append(endpoints, n)
	}
	if c.Ratios {
		toLowestTerms(endpoints)
	}
	*memory = (*memory)[:len(*memory)+len(endpoints)]
	if endpoints = slices.Clip(endpoints); len(endpoints) == 0 {
		endpoints = nil
	}
	return Pool{Verdict: p.Verdict, Endpoints: endpoints}
}
