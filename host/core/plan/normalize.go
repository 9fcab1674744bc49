package plan

import (
	"fmt"
	"slices"
)

// Normalize returns p as a backend with these capabilities represents it, and what it cannot represent. It is idempotent and shares
// unchanged frontends with p.
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

// NormalizeFrontend is Normalize for one frontend. It returns nil when the backend cannot represent the frontend at all, and f itself
// when nothing changes.
func NormalizeFrontend(f *Frontend, c Caps) (*Frontend, []Degradation) {
	return NormalizeInto(nil, f, c)
}

// Degradations returns what a backend cannot represent of a frontend. It makes no copy of endpoints that the backend has room for.
func Degradations(f *Frontend, c Caps) []Degradation {
	_, lost := normalize(f, c, func(p *Pool) (rounded bool) {
		if c.MaxEndpoints > 0 && len(p.Endpoints) > c.MaxEndpoints {
			_, rounded = normalizePool(*p, c, new([]Endpoint))
			return rounded
		}
		sum, g, n := sumGCD(p.Endpoints)
		return c.Ratios && n > 0 && sum/g > max(c.MaxTotal, n)
	})
	return lost
}

// NormalizeInto is NormalizeFrontend with memory for endpoints: the result is valid until it is used again. Nil: it has its own.
func NormalizeInto(memory *[]Endpoint, f *Frontend, c Caps) (*Frontend, []Degradation) {
	if memory == nil {
		memory = new([]Endpoint)
	}
	*memory = (*memory)[:0]
	return normalize(f, c, func(p *Pool) (rounded bool) {
		*p, rounded = normalizePool(*p, c, memory)
		return rounded
	})
}

// normalize normalizes a frontend with a function that normalizes a pool, and reports whether it has rounded weights.
func normalize(f *Frontend, c Caps, pool func(*Pool) (rounded bool)) (*Frontend, []Degradation) {
	var lost []Degradation
	lose := func(wanted, got, why string) {
		lost = append(lost, Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: wanted, Got: got, Why: c.Name + ": " + why})
	}
	if !slices.Contains(c.Protocols, f.Key.Protocol) {
		lose(f.Key.Protocol.String(), "no frontend", "the protocol is not supported")
		return nil, lost
	}
	if slices.Contains(c.Balances, f.Balance) && (c.MaxAffinity == 0 || f.Affinity <= c.MaxAffinity) && c.affinity(f.Affinity) == f.Affinity &&
		(c.Outcomes || !f.Outcomes) &&
		c.fits(&f.Owner) && c.representsExactly(&f.Pool) && (f.Outside == nil || c.representsExactly(f.Outside)) {
		return f, nil
	}
	out := *f
	if !slices.Contains(c.Balances, f.Balance) {
		lose("balance "+f.Balance.String(), "balance "+c.Balances[0].String(), "the data plane does not support it")
		out.Balance = c.Balances[0]
	}
	if d := c.affinity(f.Affinity); d != f.Affinity {
		lose("affinity "+f.Affinity.String(), "affinity "+d.String(), "the timeout is rounded up, to bound the number of different ones")
		out.Affinity = d
	}
	if c.MaxAffinity > 0 && f.Affinity > c.MaxAffinity {
		lose("affinity "+f.Affinity.String(), "affinity "+c.MaxAffinity.String(), "the timeout is too long")
		out.Affinity = c.MaxAffinity
	}
	if f.Outcomes && !c.Outcomes {
		lose("outcomes counted", "outcomes not counted", "the data plane does not count them")
		out.Outcomes = false
	}
	if !c.fits(&f.Owner) {
		out.Owner = c.shorten(f.Owner)
		lose("owner "+f.Owner.String(), "owner "+out.Owner.String(), fmt.Sprintf("names have at most %d bytes", c.MaxName))
	}
	if n := max(len(f.Pool.Endpoints), outsideLen(f)); c.MaxEndpoints > 0 && n > c.MaxEndpoints {
		lose(fmt.Sprintf("%d endpoints", n), fmt.Sprintf("%d endpoints", c.MaxEndpoints), "a pool has at most that many")
	}
	rounded := pool(&out.Pool)
	if f.Outside != nil {
		outside := *f.Outside
		rounded = pool(&outside) || rounded
		out.Outside = &outside
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

// normalizePool appends the endpoints of its result to memory.
func normalizePool(p Pool, c Caps, memory *[]Endpoint) (_ Pool, rounded bool) {
	if len(p.Endpoints) > 0 && c.representsExactly(&p) {
		return p, false
	}
	if len(p.Endpoints) == 0 {
		return Pool{Verdict: p.Verdict}, false
	}
	if c.MaxEndpoints > 0 && len(p.Endpoints) > c.MaxEndpoints {
		p.Endpoints = firstEndpoints(p.Endpoints, c.MaxEndpoints)
	}
	*memory = slices.Grow(*memory, len(p.Endpoints))
	endpoints := (*memory)[len(*memory):]
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
		rounded = ReduceWeights(endpoints, c.MaxTotal)
	}
	*memory = (*memory)[:len(*memory)+len(endpoints)]
	if endpoints = slices.Clip(endpoints); len(endpoints) == 0 {
		endpoints = nil
	}
	return Pool{Verdict: p.Verdict, Endpoints: endpoints}, rounded
}
