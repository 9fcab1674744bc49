package outlier

import (
	"github.com/sluice-proxy/sluice/sdk"
)

// suspect is an endpoint with capacity that fails, is ejected, or is on a node that fails.
type suspect struct {
	index   int
	hash    uint32
	node    sdk.StringID
	failed  uint32 // connections in its window
	ejected bool   // by an earlier decision, and its time is not over
	own     bool   // it fails or is ejected; otherwise its node does
	byNode  bool   // ejected because its node failed
	times   int64  // how often it has been ejected, if it is out
	out     bool   // ejected by this decision, or still
}

// detect counts the endpoints with capacity, and finds those that fail or are ejected.
func (p *plugin) detect(req *sdk.Request) {
	p.suspects, p.count, p.fresh = p.suspects[:0], 0, p.fresh[:0]
	begin := int64(req.Now()) - req.OutcomesWindow().Milliseconds() // of the last reading
	known := len(p.state.ejections)+len(p.state.watches) > 0
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		o := req.Outcomes(i)
		failing := o.Refused+o.Unanswered > 0
		some := e.Capacity() > 0
		if some {
			p.count++
		}
		if !known && !(failing && some) {
			continue
		}
		if !some {
			continue
		}
		ej := p.state.ejection(i)
		s := suspect{index: i, hash: e.Addr().Hash(), node: e.Node()}
		if ej != nil && ej.until > p.now {
			s.ejected, s.own, s.out, s.byNode, s.times = true, true, true, ej.byNode, ej.times
		} else if ej != nil && begin < ej.until*1000 {
			if p.onTrial(ej) && p.state.watch(i) == nil {
				p.beginStage(req, i)
			}
			continue // what failed may have been sent before it was ejected
		} else if w := p.observe(req, i, o, ej); w != nil {
			s.failed = w.inFailed
			s.own = p.fails(w, ej)
		}
		if s.own {
			p.suspects = append(p.suspects, s)
		}
	}
}

// observe updates the window of endpoint i, if it has one or has to get one. A window begins with the first reading with a
// failure. Totals, not the numbers of each reading, make the decision independent of how often it is made.
func (p *plugin) observe(req *sdk.Request, i int, o sdk.Outcomes, e *ejection) *watch {
	w, failed := p.state.watch(i), o.Refused+o.Unanswered
	if w == nil && failed == 0 {
		if p.onTrial(e) {
			p.beginStage(req, i)
		}
		return nil
	}
	all, since := req.TotalOutcomes(i)
	answered, failedAll := uint32(all.Answered), uint32(all.Refused+all.Unanswered)
	if w != nil && p.onTrial(e) && w.start+p.settings.WindowSeconds <= p.now && int64(since)/1000 <= w.start {
		return p.endStage(w, e, answered, failedAll)
	}
	if w != nil && (w.start > p.now || w.start+p.settings.WindowSeconds <= p.now || int64(since)/1000 > w.start) {
		w.start = 0 // it is over, or the node has begun to count anew
		if failed == 0 {
			return nil
		}
	}
	if w == nil {
		p.fresh = append(p.fresh, watch{index: i})
		w = &p.fresh[len(p.fresh)-1]
	}
	before := answered - min(answered, uint32(o.Answered)) // before the last reading
	if w.start == 0 {
		*w = watch{index: i, start: p.now, fromAnswered: before, fromFailed: failedAll - min(failedAll, uint32(failed)), answered: before}
		w.failed = w.fromFailed
	}
	if w.answered != before && w.answered != answered {
		w.streak = 0 // answers between the last request and the last reading
	}
	switch changed := w.answered != answered || w.failed != failedAll; {
	case o.Answered > 0:
		w.streak = 0
	case failed > 0 && changed && w.streak < 255:
		w.streak++
	}
	w.answered, w.failed, w.found = answered, failedAll, true
	w.inAnswered, w.inFailed = answered-w.fromAnswered, uint32(max(0, int32(failedAll-w.fromFailed)))
	return w
}

// beginStage begins a stage of the trial of endpoint i: from now on its outcomes count.
func (p *plugin) beginStage(req *sdk.Request, i int) {
	all, _ := req.TotalOutcomes(i)
	answered, failed := uint32(all.Answered), uint32(all.Refused+all.Unanswered)
	p.fresh = append(p.fresh, watch{index: i, start: p.now, fromAnswered: answered, fromFailed: failed, answered: answered, failed: failed, found: true})
}

// endStage ends a stage of a trial, given the totals. An endpoint that fails as often as others are ejected for, however few
// connections it had, is ejected again; one that has answered goes on to the next stage; one without outcomes stays.
func (p *plugin) endStage(w *watch, e *ejection, answered, failed uint32) *watch {
	stage := watch{index: w.index, start: p.now, fromAnswered: answered, fromFailed: failed, answered: answered, failed: failed, found: true}
	w.inAnswered, w.inFailed = answered-w.fromAnswered, uint32(max(0, int32(failed-w.fromFailed)))
	switch {
	case p.mostFail(w):
		stage.relapse, stage.inAnswered, stage.inFailed = true, w.inAnswered, w.inFailed
	case w.inAnswered > 0:
		e.stage++
	}
	if !p.onTrial(e) {
		e.until, w.found = p.now, false // from now on it is healthy
		return nil
	}
	*w = stage
	return w
}

// mostFail reports whether failedPercent of the connections of a window fail.
func (p *plugin) mostFail(w *watch) bool {
	failed, all := uint64(w.inFailed), uint64(w.inFailed)+uint64(w.inAnswered)
	return failed > 0 && failed*100 >= all*uint64(p.settings.FailedPercent)
}

// fails reports whether an endpoint with this window fails. One that has just returned from an ejection is on trial: one reading
// is enough.
func (p *plugin) fails(w *watch, e *ejection) bool {
	s := &p.settings
	if streak := int64(w.streak); s.ConsecutiveReadings > 0 && (streak >= s.ConsecutiveReadings || streak > 0 && p.onTrial(e)) {
		return true
	}
	return w.relapse || uint64(w.inFailed)+uint64(w.inAnswered) >= uint64(s.MinAttempts) && p.mostFail(w)
}

// part returns the percentage of its capacity that an endpoint has in the stage of its trial: twice that of the stage before.
func (p *plugin) part(e *ejection) int64 { return min(100, p.settings.ReturnPercent<<e.stage) }

// onTrial reports whether an endpoint has returned, and has not all of its capacity yet.
func (p *plugin) onTrial(e *ejection) bool {
	return e != nil && e.until <= p.now && p.part(e) < 100
}

// left returns the number of times on which the next back-off builds. A trial is no time of health.
func (p *plugin) left(e *ejection) int64 {
	if p.onTrial(e) {
		return e.times
	}
	return e.left(p.now, p.settings.WindowSeconds)
}

// nodes adds to the suspects the other endpoints of nodes that fail: at least nodeEndpoints of theirs fail, and at least half,
// and one of them now. So the others return although those that fail are still ejected.
func (p *plugin) nodes(req *sdk.Request) {
	p.failing = p.failing[:0]
	if p.settings.NodeEndpoints == 0 || int64(len(p.suspects)) < p.settings.NodeEndpoints {
		return
	}
	for _, s := range p.suspects {
		if s.node == sdk.NoString || s.byNode {
			continue
		}
		f := p.node(s.node)
		f.suspects++
		f.now = f.now || !s.ejected
	}
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Capacity() > 0 {
			for j := range p.failing {
				if p.failing[j].id == e.Node() {
					p.failing[j].endpoints++
				}
			}
		}
	}
	n := 0
	for _, f := range p.failing {
		if f.now && int64(f.suspects) >= p.settings.NodeEndpoints && 2*f.suspects >= f.endpoints {
			p.failing[n] = f
			n++
		}
	}
	if p.failing = p.failing[:n]; n == 0 {
		return
	}
	own, k := p.suspects, 0
	p.suspects = p.merged[:0]
	for i := range req.NumEndpoints() {
		if k < len(own) && own[k].index == i {
			p.suspects = append(p.suspects, own[k])
			k++
			continue
		}
		e := req.Endpoint(i)
		if e.Capacity() > 0 && p.nodeFails(e.Node()) {
			p.suspects = append(p.suspects, suspect{index: i, hash: e.Addr().Hash(), node: e.Node(), byNode: true})
		}
	}
	p.merged = own[:0]
}

// failingNode is a node with suspects.
type failingNode struct {
	id                           sdk.StringID
	suspects, endpoints, ejected int
	now                          bool // one of the suspects is not ejected yet
}

// node returns the entry of a node, and adds it if it is the first suspect's.
func (p *plugin) node(id sdk.StringID) *failingNode {
	for i := range p.failing {
		if p.failing[i].id == id {
			return &p.failing[i]
		}
	}
	p.failing = append(p.failing, failingNode{id: id})
	return &p.failing[len(p.failing)-1]
}

func (p *plugin) nodeFails(id sdk.StringID) bool {
	for i := range p.failing {
		if p.failing[i].id == id {
			return id != sdk.NoString
		}
	}
	return false
}
