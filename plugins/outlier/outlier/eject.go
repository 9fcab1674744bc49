package outlier

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"

	"github.com/sluice-proxy/sluice/sdk"
)

// panics reports whether too few of the endpoints with capacity are healthy, as Envoy does ("Panic threshold").
func (p *plugin) panics() bool {
	return int64(p.count-len(p.suspects))*100 < p.settings.PanicPercent*int64(p.count)
}

// withoutNodes removes the suspects that do not fail themselves: a node that has too many of the endpoints is not ejected as a
// whole.
func (p *plugin) withoutNodes() {
	p.suspects = slices.DeleteFunc(p.suspects, func(s suspect) bool { return !s.own })
	p.failing = p.failing[:0]
}

// eject ejects suspects within the limit: maxEjectionPercent of the endpoints with capacity, but at least one endpoint or one
// node. Nodes come first, then the endpoints with the most failures. Nodes of the cluster resolve ties differently. It reports
// whether any endpoint with a share is left.
func (p *plugin) eject(req *sdk.Request) bool {
	limit := max(1, int(p.settings.MaxEjectionPercent)*p.count/100)
	out := 0
	for _, s := range p.suspects {
		if s.out {
			out++
			if p.nodeFails(s.node) {
				p.node(s.node).ejected++
			}
		}
	}
	p.order = p.order[:0]
	for i := range p.suspects {
		if !p.suspects[i].out {
			p.order = append(p.order, i)
		}
	}
	if len(p.order) == 0 {
		return p.leaves(req)
	}
	slices.SortFunc(p.failing, func(a, b failingNode) int {
		return cmp.Or(cmp.Compare(b.suspects, a.suspects), cmp.Compare(a.id, b.id))
	})
	for _, f := range p.failing {
		if more := f.endpoints - f.ejected; out+more > limit && out > f.ejected {
			continue
		}
		for _, i := range p.order {
			if p.suspects[i].node == f.id {
				p.suspects[i].out = true
				out++
			}
		}
	}
	slices.SortFunc(p.order, func(a, b int) int {
		s, t := &p.suspects[a], &p.suspects[b]
		return cmp.Or(cmp.Compare(t.failed, s.failed), cmp.Compare(weights.Mix(s.hash^p.seed), weights.Mix(t.hash^p.seed)), cmp.Compare(a, b))
	})
	for _, i := range p.order {
		if s := &p.suspects[i]; s.own && !s.out && out < limit {
			s.out = true
			out++
		}
	}
	return p.leaves(req)
}

// leaves reports whether an endpoint that is not ejected has a share: others are hinted to other nodes or zones.
func (p *plugin) leaves(req *sdk.Request) bool {
	k := 0
	for i := range req.NumEndpoints() {
		out := false
		if k < len(p.suspects) && p.suspects[k].index == i {
			out = p.suspects[k].out
			k++
		}
		if !out && req.Endpoint(i).Load() > 0 {
			return true
		}
	}
	return false
}

// backOff computes how long the endpoints that this decision ejects stay out.
func (p *plugin) backOff(resp *sdk.Response) {
	s := &p.settings
	for i := range p.suspects {
		x := &p.suspects[i]
		if !x.out || x.ejected {
			continue
		}
		if x.own {
			resp.Count(countEjections, 1)
		} else {
			resp.Count(countNodeEjections, 1)
		}
		e := p.state.ejection(x.index)
		if e == nil {
			p.added = append(p.added, ejection{index: x.index})
			e = &p.added[len(p.added)-1]
		}
		e.byNode, e.times = !x.own, min(p.left(e)+1, s.maxTimes())
		e.stage = 0
		e.until = p.now + s.ejection(e.times, weights.Mix(x.hash^p.seed))
		x.times = e.times
	}
}

// remember sets the state, and requests another call when something changes next.
func (p *plugin) remember(resp *sdk.Response) {
	s, m := &p.settings, &p.state
	out := func(index int) bool {
		return slices.ContainsFunc(p.suspects, func(s suspect) bool { return s.index == index && s.out })
	}
	m.watches = append(m.watches, p.fresh...)
	m.watches = slices.DeleteFunc(m.watches, func(w watch) bool { return !w.found || out(w.index) })
	m.ejections = append(m.ejections, p.added...)
	p.added = p.added[:0]
	m.ejections = slices.DeleteFunc(m.ejections, func(e ejection) bool { return p.left(&e) == 0 })
	m.write(resp)

	next := int64(0)
	at := func(t int64) {
		if t > p.now && (next == 0 || t < next) {
			next = t
		}
	}
	for _, e := range m.ejections {
		at(e.until)
		at(e.until + s.WindowSeconds)
		if p.onTrial(&e) && m.watch(e.index) == nil {
			at(p.now + s.WindowSeconds) // a stage begins with the next decision
		}
	}
	for i := range m.watches {
		at(m.watches[i].start + s.WindowSeconds)
	}
	if next > 0 {
		resp.RequeueAfter(sdk.Duration(next-p.now) * sdk.Second)
	}
}
