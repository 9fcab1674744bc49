package wasm

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// messages is an instance that makes several calls at once.
type messages interface {
	// doAll makes calls, and reports whether it knows their results: otherwise the process has ended. Those that have not been
	// made are skipped: the ones after a failure, and the ones for which there was no time. Results are part of answer, which is
	// reused.
	doAll(calls []*call, answer *[]byte) bool
}

// together are calls that are made together. The buffers are reused.
type together struct {
	calls [messageCalls]call
	refs  [messageCalls]*call
	ends  [messageCalls]int // of the requests in input
	input []byte

	answer []byte
}

// DecideAll implements policy.Batcher. A call that would have waited for slow ones before it has the error policy.ErrUnasked.
func (p *Plugin) DecideAll(calls []*policy.Call) {
	p.mu.Lock()
	defer p.unlock()
	for len(calls) > 0 {
		n, end := p.decideTogether(calls)
		if n == 0 && !end {
			calls[0].Err = p.decide(&calls[0].Request, &calls[0].Response)
			n = 1
		}
		if calls = calls[n:]; end {
			for _, c := range calls {
				c.Err = policy.ErrUnasked
			}
			return
		}
	}
}

// decideTogether makes the first calls, if they are for one instance that has their settings, and returns how many have been
// answered. end means that the others are for another time.
func (p *Plugin) decideTogether(calls []*policy.Call) (n int, end bool) {
	key := p.options.key(&calls[0].Request)
	g := p.pool.guests[key]
	if p.closed || p.impure != nil || g == nil || !g.in.alive() {
		return 0, false
	}
	in, ok := g.in.(messages)
	if !ok {
		return 0, false
	}
	if p.together == nil {
		p.together = &together{}
	}
	t := p.together
	count := t.add(p, g, key, calls)
	if count < 2 {
		return 0, false
	}
	p.messages++
	p.code.alone.RLock()
	answered := in.doAll(t.refs[:count], &t.answer)
	p.code.alone.RUnlock()
	if !answered {
		p.drop(g)
		return p.decideAlone(calls[:count])
	}
	for i, c := range calls[:count] {
		if t.calls[i].skipped {
			return i, true
		}
		if c.Err = p.answered(g, key, &t.calls[i], c); g.in == nil {
			return i + 1, false
		}
	}
	return count, false
}

// add prepares the first of the calls, and returns how many.
func (t *together) add(p *Plugin, g *guest, key instanceKey, calls []*policy.Call) (n int) {
	t.input = t.input[:0]
	room := 0
	for _, c := range calls[:min(len(calls), messageCalls)] {
		req := &c.Request
		h, ok := g.handles[req.Settings.Text]
		if !ok || p.options.key(req) != key || g.encoder.Full() || p.suspended(key, req) != nil {
			break
		}
		r := &t.calls[n]
		*r = g.decision(req)
		before := len(t.input)
		t.input = g.encoder.AppendRequest(t.input, req, abi.View{Role: p.report.Role, Settings: h.id, Needs: h.needs, Keys: h.keys})
		if room += r.room + otherAnswer; len(t.input)+(n+1)*2*callHead > lane.Request || room > lane.Answer {
			t.input = t.input[:before]
			break
		}
		t.ends[n], t.refs[n] = len(t.input), r
		n++
	}
	begin := 0
	for i := range n {
		t.calls[i].input, begin = t.input[begin:t.ends[i]:t.ends[i]], t.ends[i]
	}
	return n
}

// answered deals with a result as decide does.
func (p *Plugin) answered(g *guest, key instanceKey, result *call, c *policy.Call) error {
	req := &c.Request
	if err := p.admit(key, req); err != nil {
		return err
	}
	p.calls++
	p.pool.uses++
	p.guest, g.lastUse, g.call = g, p.pool.uses, *result
	p.logLines(&g.call)
	return p.finish(key, g, req, &c.Response, g.decided(&p.decoder, len(req.Endpoints), &c.Response))
}

// decideAlone makes calls of which one may have ended the process, one by one, until one does so again.
func (p *Plugin) decideAlone(calls []*policy.Call) (n int, end bool) {
	for i, c := range calls {
		c.Err = p.decide(&c.Request, &c.Response)
		if errors.Is(c.Err, errProcess) || IsLate(c.Err) {
			return i + 1, true
		}
	}
	return len(calls), false
}
