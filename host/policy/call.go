package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// pluginCall holds the buffers of a plugin call; they are reused.
type pluginCall struct {
	req       abi.Request
	resp      abi.Response
	portIndex []int // from req.Endpoints to Port.Endpoints
	zones     []abi.Zone
	digester  digester
	calls     uint64 // so far
}

// invoke calls a plugin and records its answer, or the error and when to retry.
func (c *pluginCall) invoke(plugin Plugin, s *stepState, in *Input, nowMS int64) {
	c.req.State = s.state
	c.resp.Reset(len(c.req.Endpoints))
	c.calls++
	err := plugin.Decide(&c.req, &c.resp)
	if err == nil {
		err = c.check(in)
	}
	if err != nil {
		s.backoff = min(max(minBackoff, 2*s.backoff), maxBackoff)
		s.err, s.requeueAt = err, nowMS+s.backoff.Milliseconds()
		return
	}
	s.err, s.backoff = nil, 0
	s.answeredAt, s.requeueAt = c.req.Now, 0
	if c.resp.RequeueAfter > 0 {
		// RequeueAfter counts from Request.Now, a whole second. More than one call a second would be useless: a plugin sees no
		// smaller unit of time.
		s.requeueAt = c.req.Now + max(c.resp.RequeueAfter, time.Second).Milliseconds()
	}
	s.results = packResults(c.resp.Results)
	s.balance = c.resp.Balance
	s.state = append(s.state[:0], c.resp.State...)
}

// check sets the weights of ineligible endpoints to 0, and returns an error if no weight is left.
func (c *pluginCall) check(in *Input) error {
	if len(c.resp.Results) != len(c.req.Endpoints) {
		return fmt.Errorf("answer has %d endpoints, the request %d", len(c.resp.Results), len(c.req.Endpoints))
	}
	if len(c.resp.State) > abi.MaxStateLen {
		return fmt.Errorf("answer has %d bytes of state, the limit is %d", len(c.resp.State), abi.MaxStateLen)
	}
	hasWeight := false
	for i := range c.resp.Results {
		if !in.Port.Endpoints[c.portIndex[i]].Eligible() {
			c.resp.Results[i].Weight = 0
		}
		hasWeight = hasWeight || c.resp.Results[i].Weight > 0
	}
	if !hasWeight {
		return errors.New("answer has no eligible endpoint with a weight above 0")
	}
	return nil
}

// applyStep applies a plugin's answer to the request of the next plugin, and returns it.
func (c *pluginCall) applyStep(name string, s *stepState, in *Input) StepResult {
	n := len(in.Port.Endpoints)
	r := StepResult{Plugin: name, Weights: s.results.weights, Reasons: make([]string, n)}
	if len(c.portIndex) < n { // otherwise the request has all endpoints
		r.Weights = make([]uint16, n)
	}
	for i, w := range s.results.weights {
		c.req.Endpoints[i].Weight = uint32(w)
		r.Weights[c.portIndex[i]], r.Reasons[c.portIndex[i]] = w, s.results.reasons.At(i)
	}
	return r
}

// combine combines the answers of the chain: the last plugin's weights, the earliest reset, the last balance that is set.
func (c *pluginCall) combine(m *poolState) *lastGood {
	old := m.lastGood
	if old == nil {
		old = &lastGood{}
	}
	expired := old.expiredResets(c.req.Now)
	n := len(c.req.Endpoints)
	g := &lastGood{addrs: m.times.addrs}
	if expired == nil && cap(old.rows) >= n { // old.rows is not used any more
		g.rows = old.rows[:n]
	} else {
		g.rows = make([]row, n)
	}
	if n < g.addrs.Len() { // a local pool
		g.addrs = model.PackAddrs(n, func(i int) netip.AddrPort { return c.req.Endpoints[i].Addr })
	}
	for i := range g.rows {
		e := &c.req.Endpoints[i]
		g.rows[i] = row{weight: uint16(e.Weight), conditions: uint8(e.Conditions & lifecycleBits)}
	}
	for k := range m.steps {
		s := &m.steps[k]
		if s.balance != abi.BalanceDefault {
			g.balance = s.balance
		}
		for i, keep := range s.results.keepDraining {
			if keep {
				g.rows[i].keepDraining, g.hasDraining = true, true
			}
		}
		for i, after := range s.results.resetAfterMS {
			if after != abi.NeverReset {
				if at := s.answeredAt + int64(after); g.resetAt(i) == 0 || at < g.resetAt(i) {
					g.setReset(i, at)
				}
			}
		}
	}
	if expired == nil {
		return g
	}
	for i, at := range g.resetsAt { // no second reset until the endpoint's conditions change
		if j, ok := expired[g.addrs.At(i)]; ok && at != 0 && old.rows[j].conditions == g.rows[i].conditions {
			g.setReset(i, old.resetAt(j))
		}
	}
	return g
}
