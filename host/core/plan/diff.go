package plan

import (
	"net/netip"
	"slices"
)

// Delta is the difference between two plans. Changes are sorted by key, with at most one for each key.
type Delta struct {
	Global  *Global // the new value; nil: unchanged
	Changes []Change
}

// Change is the change of a frontend. Old is nil if it is added, New if it is deleted.
type Change struct {
	Key      Key
	Old, New *Frontend
}

// Empty reports whether there is no change.
func (d *Delta) Empty() bool { return d.Global == nil && len(d.Changes) == 0 }

// Lost returns the endpoints that got new connections through a frontend before a change and get none after it, as long as the
// frontend exists. One that leaves both pools may come twice.
func (c *Change) Lost() (lost []netip.AddrPort) {
	if c.Old == nil || c.New == nil {
		return nil
	}
	for _, p := range []*Pool{&c.Old.Pool, c.Old.Outside} {
		if p == nil {
			continue
		}
		next := c.New.Pool.Endpoints // of those that are not less than e
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			for len(next) > 0 && next[0].Addr.Compare(e.Addr) < 0 {
				next = next[1:]
			}
			kept := len(next) > 0 && next[0].Addr == e.Addr && next[0].Weight > 0
			if e.Weight > 0 && !kept && !c.New.Takes(e.Addr) {
				lost = append(lost, e.Addr)
			}
		}
	}
	return lost
}

// Diff compares two plans. Its cost is that of the plans; host/core/planner reports a Delta at the cost of the change instead.
func Diff(prev, next *Plan) *Delta {
	d := &Delta{}
	if !prev.Global.Equal(&next.Global) {
		g := next.Global
		d.Global = &g
	}
	for k, n := range next.Frontends {
		if o := prev.Frontends[k]; o == nil || !o.Equal(n) {
			d.Changes = append(d.Changes, Change{Key: k, Old: o, New: n})
		}
	}
	for k, o := range prev.Frontends {
		if next.Frontends[k] == nil {
			d.Changes = append(d.Changes, Change{Key: k, Old: o})
		}
	}
	slices.SortFunc(d.Changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	return d
}

// Apply applies d to p in place.
func (p *Plan) Apply(d *Delta) {
	if d.Global != nil {
		p.Global = *d.Global
	}
	for _, c := range d.Changes {
		if c.New == nil {
			delete(p.Frontends, c.Key)
			continue
		}
		if p.Frontends == nil {
			p.Frontends = map[Key]*Frontend{}
		}
		p.Frontends[c.Key] = c.New
	}
}

// Equal reports whether two plans are equal.
func (p *Plan) Equal(q *Plan) bool {
	if !p.Global.Equal(&q.Global) || len(p.Frontends) != len(q.Frontends) {
		return false
	}
	for k, f := range p.Frontends {
		if g := q.Frontends[k]; g == nil || !f.Equal(g) {
			return false
		}
	}
	return true
}

// Equal reports whether two global parts are equal.
func (g *Global) Equal(h *Global) bool {
	return g.MasqueradeMark == h.MasqueradeMark &&
		slices.Equal(g.NodePortAddrs, h.NodePortAddrs) &&
		slices.Equal(g.LocalhostAddrs, h.LocalhostAddrs) &&
		slices.Equal(g.PodSources, h.PodSources) &&
		slices.Equal(g.PodInterfaces, h.PodInterfaces) &&
		slices.Equal(g.ServiceCIDRs, h.ServiceCIDRs) &&
		slices.Equal(g.NoMasquerade, h.NoMasquerade)
}

// Equal reports whether two frontends are equal. Plans share frontends, so mostly it compares two pointers.
func (f *Frontend) Equal(g *Frontend) bool {
	if f == g {
		return true
	}
	return f.Key == g.Key && f.Kind == g.Kind && f.Owner == g.Owner &&
		f.Masquerade == g.Masquerade && f.Affinity == g.Affinity && f.Balance == g.Balance && f.Outcomes == g.Outcomes && f.RetryRefused == g.RetryRefused &&
		f.LongLived == g.LongLived &&
		(f.SourceRanges == nil) == (g.SourceRanges == nil) &&
		slices.EqualFunc(f.SourceRanges, g.SourceRanges, func(a, b netip.Prefix) bool { return a == b }) &&
		f.Pool.Equal(&g.Pool) && f.Degraded.equal(g.Degraded) &&
		(f.Outside == nil) == (g.Outside == nil) && (f.Outside == nil || f.Outside.Equal(g.Outside))
}

// Equal reports whether two pools are equal.
func (p *Pool) Equal(q *Pool) bool {
	return p.Verdict == q.Verdict && slices.Equal(p.Endpoints, q.Endpoints)
}
