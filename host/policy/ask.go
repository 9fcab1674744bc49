package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// pluginCall holds what a call needs, reused from call to call.
type pluginCall struct {
	req      abi.Request
	resp     abi.Response
	index    []int // request endpoint → Port.Endpoints
	zones    []abi.Zone
	digester digester
	calls    uint64
}

// stepState is what is remembered of one plugin in a chain.
type stepState struct {
	digest     requestDigest // of what it was last asked
	answers    answers
	balance    uint8
	state      []byte
	answeredAt int64         // when it last answered, Unix milliseconds, whole seconds
	requeueAt  int64         // ask again then; 0: only on a change
	err        error         // why it did not answer
	backoff    time.Duration // the present back-off
}

// due tells whether the plugin has to be asked at nowMS about something with this print.
func (s *stepState) due(p requestDigest, nowMS int64) bool {
	return s.digest != p || s.requeueAt != 0 && s.requeueAt <= nowMS
}

// evaluate asks the plugins in turn, each only when what it sees has changed or its wake time has passed.
func (c *Evaluator) evaluate(m *poolState, in *Input, now time.Time, d *Decision) (*lastGood, time.Time, error) {
	a := &c.call
	a.build(m, in, now, c.needs(m.policy))
	if p := a.digester.request(&a.req); p != m.digest {
		m.digest = p
		m.generation++
	}
	a.req.Generation = m.generation
	nowMS, wake := now.UnixMilli(), int64(0)
	for i := range m.steps {
		s, name := &m.steps[i], m.policy.Steps[i].Plugin
		plugin, err := c.plugins(m.policy.Steps[i])
		if err == nil && in.NodesUnknown && plugin.Needs()&abi.NeedNodes != 0 {
			err = errNodesUnknown
		}
		if err == nil {
			p := a.digester.step(m.digest, plugin.Revision(), a.req.Endpoints)
			switch due := s.due(p, nowMS); {
			case due && c.ShouldDefer != nil && c.ShouldDefer():
				return nil, now, ErrPending
			case due:
				s.digest = p
				a.invoke(plugin, s, in, nowMS)
			}
			err = s.err
		} else {
			s.digest, s.requeueAt = requestDigest{}, 0 // asked as soon as the plugin is there: a reload decides anew
		}
		if s.requeueAt != 0 && (wake == 0 || s.requeueAt < wake) {
			wake = s.requeueAt
		}
		if err != nil {
			err = fmt.Errorf("plugin %s: %w", name, err)
			d.Steps = append(d.Steps, StepResult{Plugin: name, Err: err})
			return nil, unixMilli(wake), err
		}
		d.Steps = append(d.Steps, a.applyStep(name, s, in))
	}
	return a.combine(m, in), unixMilli(wake), nil
}

// errNodesUnknown is why a plugin is not asked that wants to know the cluster's Nodes before they are read.
var errNodesUnknown = fmt.Errorf("%w: the cluster's Nodes are not known yet", ErrPending)

// needs is what the plugins of a chain ask for, as far as they are loaded.
func (c *Evaluator) needs(p *Policy) (all uint32) {
	for _, s := range p.Steps {
		if plugin, err := c.plugins(s); err == nil {
			all |= plugin.Needs()
		}
	}
	return all
}

func unixMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// build makes the request before the chain: the default rules' weights, the endpoints' history, the zone table.
func (a *pluginCall) build(m *poolState, in *Input, now time.Time, needs uint32) {
	p := in.Port
	a.index = a.index[:0]
	eps := a.req.Endpoints[:0]
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if in.Pool == abi.PoolLocal && !e.Local {
			continue
		}
		since, is := m.times.times[i], conditions(in, i)
		eps = append(eps, abi.Endpoint{
			Addr: e.Addr, Conditions: is, Node: e.Node, Zone: e.Zone,
			Weight: is / abi.Chosen & 1, PriorWeight: abi.NoWeight,
			ReadySince: milliseconds(since.ready), TerminatingSince: milliseconds(since.terminating), Connections: abi.ConnectionsUnknown,
		})
		a.index = append(a.index, i)
	}
	if m.lastGood != nil {
		j := 0
		m.lastGood.forEach(in, func(i, r int) {
			if j < len(a.index) && a.index[j] == i {
				if r >= 0 {
					eps[j].PriorWeight = int32(m.lastGood.rows[r].weight)
				}
				j++
			}
		})
	}
	a.req = abi.Request{
		Now:       wholeSecond(now),
		Namespace: p.Name.Service.Namespace, Service: p.Name.Service.Name, Port: p.Name.Port,
		PortNumber: p.Spec.Port, Protocol: uint8(p.Name.Protocol), Family: uint8(p.Family), Pool: in.Pool,
		InternalPolicyLocal: in.Service.InternalLocal, ExternalPolicyLocal: in.Service.ExternalLocal,
		SessionAffinityMS: in.Service.Affinity.Milliseconds(),
		Node:              in.Node, Zone: in.Zone, Zones: a.zoneTable(in, needs), Endpoints: eps,
	}
}

// zoneTable is in.Zones where that is needed, else this node's zone alone, with the zones that only endpoints name, and
// the ready endpoints of each counted. What was not asked for is not given either, or else a plugin's answers would
// depend on what other Services' plugins need.
func (a *pluginCall) zoneTable(in *Input, needs uint32) []abi.Zone {
	a.zones = a.zones[:0]
	switch {
	case needs&abi.NeedNodes != 0:
		a.zones = append(a.zones, in.Zones...)
	case in.Zone != "":
		a.zones = append(a.zones, abi.Zone{Name: in.Zone})
	}
	for i := range a.zones {
		a.zones[i].Ready = 0
	}
	find := func(name string) (int, bool) {
		return slices.BinarySearchFunc(a.zones, name, func(z abi.Zone, n string) int {
			switch {
			case z.Name < n:
				return -1
			case z.Name > n:
				return 1
			}
			return 0
		})
	}
	for i := range in.Port.Endpoints {
		e := &in.Port.Endpoints[i]
		if e.Zone == "" {
			continue
		}
		at, ok := find(e.Zone)
		if !ok {
			a.zones = slices.Insert(a.zones, at, abi.Zone{Name: e.Zone})
		}
		if e.Ready {
			a.zones[at].Ready++
		}
	}
	return a.zones
}

func conditions(in *Input, i int) uint32 {
	e := &in.Port.Endpoints[i]
	var c uint32
	if e.Ready {
		c |= abi.Ready
	}
	if e.Serving {
		c |= abi.Serving
	}
	if e.Terminating {
		c |= abi.Terminating
	}
	if e.Local {
		c |= abi.Local
	}
	if chosen(in, i) {
		c |= abi.Chosen
	}
	if e.HintedZone {
		c |= abi.HintedZone
	}
	if e.HintedNode {
		c |= abi.HintedNode
	}
	return c
}

// invoke asks one plugin and records its answer, or why there is none and when to try again.
func (a *pluginCall) invoke(plugin Plugin, s *stepState, in *Input, nowMS int64) {
	a.req.State = s.state
	a.resp.Reset(len(a.req.Endpoints))
	a.calls++
	err := plugin.Decide(&a.req, &a.resp)
	if err == nil {
		err = a.check(in)
	}
	if err != nil {
		s.backoff = min(max(minBackoff, 2*s.backoff), maxBackoff)
		s.err, s.requeueAt = err, nowMS+s.backoff.Milliseconds()
		return
	}
	s.err, s.backoff = nil, 0
	s.answeredAt, s.requeueAt = a.req.Now, 0
	if a.resp.RequeueAfter > 0 {
		// The plugin counts from the time it was given, which is a whole second. It is asked once a second at most:
		// nothing that it sees of time changes more often.
		s.requeueAt = a.req.Now + max(a.resp.RequeueAfter, time.Second).Milliseconds()
	}
	s.answers = packAnswers(a.resp.Results)
	s.balance = a.resp.Balance
	s.state = append(s.state[:0], a.resp.State...)
}

// check clamps an answer to what is eligible, and refuses one that would leave nothing.
func (a *pluginCall) check(in *Input) error {
	if len(a.resp.Results) != len(a.req.Endpoints) {
		return fmt.Errorf("answered for %d endpoints of %d", len(a.resp.Results), len(a.req.Endpoints))
	}
	if len(a.resp.State) > abi.MaxStateLen {
		return fmt.Errorf("state of %d bytes: the limit is %d", len(a.resp.State), abi.MaxStateLen)
	}
	left := false
	for i := range a.resp.Results {
		if !in.Port.Endpoints[a.index[i]].Eligible() {
			a.resp.Results[i].Weight = 0
		}
		left = left || a.resp.Results[i].Weight > 0
	}
	if !left {
		return errors.New("the answer leaves a Service that has endpoints with none")
	}
	return nil
}

// applyStep lays a step's answer into the request, for the next plugin, and into a result for people.
func (a *pluginCall) applyStep(name string, s *stepState, in *Input) StepResult {
	n := len(in.Port.Endpoints)
	r := StepResult{Plugin: name, Weights: s.answers.weights, Reasons: make([]string, n)}
	if len(a.index) < n { // else all endpoints were asked about
		r.Weights = make([]uint16, n)
	}
	for i, w := range s.answers.weights {
		a.req.Endpoints[i].Weight = uint32(w)
		r.Weights[a.index[i]], r.Reasons[a.index[i]] = w, s.answers.reasons.At(i)
	}
	return r
}

// combine puts the chain's answer together: the last plugin's weights, the earliest reset, the last word on balance.
func (a *pluginCall) combine(m *poolState, in *Input) *lastGood {
	old := m.lastGood
	if old == nil {
		old = &lastGood{}
	}
	past := old.expiredResets(a.req.Now)
	n := len(a.req.Endpoints)
	g := &lastGood{addrs: m.times.addrs}
	if past == nil && cap(old.rows) >= n { // nobody else has them
		g.rows = old.rows[:n]
	} else {
		g.rows = make([]row, n)
	}
	if n < g.addrs.Len() { // a local pool has some of the endpoints
		g.addrs = model.PackAddrs(n, func(i int) netip.AddrPort { return a.req.Endpoints[i].Addr })
	}
	for i := range g.rows {
		e := &a.req.Endpoints[i]
		g.rows[i] = row{weight: uint16(e.Weight), conditions: uint8(e.Conditions & lifecycleBits)}
	}
	for k := range m.steps {
		s := &m.steps[k]
		if s.balance != abi.BalanceDefault {
			g.balance = s.balance
		}
		for i, keep := range s.answers.keepDraining {
			if keep {
				g.rows[i].keepDraining, g.hasDraining = true, true
			}
		}
		for i, after := range s.answers.resetAfterMS {
			if after != abi.NeverReset {
				if at := s.answeredAt + int64(after); g.resetAt(i) == 0 || at < g.resetAt(i) {
					g.setReset(i, at)
				}
			}
		}
	}
	if past == nil {
		return g
	}
	for i, at := range g.resetsAt { // what has been reset is not reset again before the endpoint's conditions change
		if j, had := past[g.addrs.At(i)]; had && at != 0 && old.rows[j].conditions == g.rows[i].conditions {
			g.setReset(i, old.resetAt(j))
		}
	}
	return g
}
