// Package rebalance implements the plugin rebalance: after new endpoints have become ready, those with more than their share of
// the open connections shed part of them, so that clients with long-lived connections reconnect, also to the new ones.
package rebalance

import (
	"math"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only buffers between calls: history is in the state of the request.
type plugin struct {
	settings settings

	now       int64 // of the request, Unix seconds
	state     state
	endpoints []endpoint // those that get connections and do not terminate
	fair      []uint64   // of all endpoints
	total     uint64     // sum of fair over endpoints
	newcomers int
	latest    int64 // when the last newcomer became ready, Unix milliseconds
	buf       []byte
	texts     [1000/step + 1]string // reasons by value
}

// endpoint is an endpoint that gets connections.
type endpoint struct {
	index   int
	fair    uint64 // part of the connections
	open    uint64 // connections
	counted bool
	isNew   bool
}

const (
	// roundSeconds is how long a shed takes, by the ABI.
	roundSeconds = 60
	// maxAge is how old a count may be.
	maxAge = sdk.Minute
	// maxOpen bounds a number of connections, so that products fit 64 bits.
	maxOpen = 1 << 24
)

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Needs implements sdk.Needer.
func (*plugin) Needs() sdk.Need { return sdk.NeedConnections }

// Decide sheds connections in rounds of a minute. A round sheds at most the excess of each endpoint, according to a count from
// after the round before.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	p.now = int64(req.Now()) / 1000
	p.collect(req)
	if p.newcomers == 0 || len(p.endpoints) < 2 {
		return nil // also ends a round
	}
	if why := p.obstacle(req); why != "" {
		id := resp.AddReason(why)
		for i := range p.endpoints {
			resp.SetReasonID(p.endpoints[i].index, id)
		}
		return nil
	}
	m := &p.state
	m.read(req.State(), p.now+max(p.settings.DelaySeconds+p.settings.JitterSeconds, roundSeconds))
	if m.until == 0 {
		m.until, m.after = p.latest/1000+p.settings.DelaySeconds+p.jitter(req), p.latest
	}
	wait := m.until - p.now
	switch {
	case m.round && p.now < m.until:
		if m.pool != pool(req) || len(m.values) != req.NumEndpoints() { // the count is at least as recent as that of this round
			p.begin(req, m.until)
		}
	case p.now < m.until: // a round begins later
	default:
		switch {
		case m.round: // one answer without sheds, so that equal values begin new ones
			m.round, m.after, wait = false, m.until*1000, 1
		case p.counted(req):
			wait = roundSeconds
			p.begin(req, p.now+roundSeconds)
		default:
			wait = p.poll(req)
		}
	}
	p.apply(resp)
	p.buf = m.append(p.buf[:0])
	resp.SetState(p.buf)
	wait = min(wait, p.latest/1000+p.settings.DurationSeconds-p.now) // then there are no newcomers
	resp.RequeueAfter(sdk.Duration(wait) * sdk.Second)
	return nil
}

// collect collects the endpoints that get connections and do not terminate. Those that became ready less than durationSeconds ago
// are newcomers; without any, nothing else is needed.
func (p *plugin) collect(req *sdk.Request) {
	p.endpoints, p.total, p.newcomers, p.latest = p.endpoints[:0], 0, 0, 0
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if e.Load() == 0 || e.Terminating() { // what becomes of the connections of a draining endpoint is not for this plugin to say
			continue
		}
		x := endpoint{index: i}
		since := int64(e.ReadySince())
		if since != 0 && since <= int64(req.Now())+999 && p.now-since/1000 < p.settings.DurationSeconds {
			x.isNew = true
			p.newcomers++
			p.latest = max(p.latest, since)
		}
		p.endpoints = append(p.endpoints, x)
	}
	if p.newcomers == 0 {
		return
	}
	p.fair = weights.Fair(p.fair, req)
	for i := range p.endpoints {
		x := &p.endpoints[i]
		n, counted := req.Endpoint(x.index).Connections()
		x.open, x.counted, x.fair = min(uint64(n), maxOpen), counted, p.fair[x.index]
		p.total += x.fair
	}
}

// obstacle returns why nothing can be shed, "" if something can.
func (p *plugin) obstacle(req *sdk.Request) string {
	switch {
	case req.NumEndpoints() > maxEndpoints:
		return "nothing is shed: more than " + strconv.Itoa(maxEndpoints) + " endpoints"
	case req.SessionAffinityTimeout() > 0:
		return "nothing is shed: with session affinity, clients return to their endpoint"
	case req.InternalPolicyLocal() != req.ExternalPolicyLocal():
		return "nothing is shed: one of the traffic policies is Local, and connections are counted for both"
	}
	return ""
}

// pool returns a hash of the addresses of all endpoints.
func pool(req *sdk.Request) (h uint32) {
	for i := range req.NumEndpoints() {
		h = weights.Mix(h ^ req.Endpoint(i).Addr().Hash())
	}
	return h
}

// jitter returns by how much this node begins later, in seconds.
func (p *plugin) jitter(req *sdk.Request) int64 {
	h := weights.HashText(req.Text(req.Node()) + "/" + req.Text(req.Namespace()) + "/" + req.Text(req.Service()))
	return int64(uint64(h) * uint64(p.settings.JitterSeconds+1) >> 32)
}

// counted reports whether the connections of all endpoints have been counted recently, and after what changed them.
func (p *plugin) counted(req *sdk.Request) bool {
	age, ok := req.ConnectionsAge()
	if !ok || age > maxAge || int64(req.Now())-age.Milliseconds() < p.state.after {
		return false
	}
	for i := range p.endpoints {
		if !p.endpoints[i].counted {
			return false
		}
	}
	return true
}

// poll returns when to look for a new count, in seconds: the larger the table, the more seldom it is counted.
func (p *plugin) poll(req *sdk.Request) int64 {
	age, _ := req.ConnectionsAge()
	return min(max(1, int64(age/sdk.Second)/2), 30)
}

// begin begins a round, or the rest of one with other endpoints, if newcomers lack connections and the connections have been
// counted. Otherwise nothing is shed until the end.
func (p *plugin) begin(req *sdk.Request, end int64) {
	m := &p.state
	m.round, m.until, m.pool = true, end, pool(req)
	m.values = append(m.values[:0], make([]byte, req.NumEndpoints())...)
	if !p.counted(req) {
		return
	}
	open := uint64(0)
	for i := range p.endpoints {
		open += p.endpoints[i].open
	}
	// In units of connections × the sum of parts, so that nothing is rounded.
	var excess, lack, shares uint64
	for i := range p.endpoints {
		e := &p.endpoints[i]
		have, share := e.open*p.total, open*e.fair
		if have > share {
			excess += have - share
		}
		if e.isNew {
			lack, shares = lack+max(share, have)-have, shares+share
		}
	}
	few := shares < uint64(p.settings.MinConnections)*p.total*uint64(p.newcomers)
	if few || excess == 0 || permille(lack, shares) <= uint64(p.settings.TolerancePercent)*10 {
		return
	}
	part := min(1000, permille(lack, excess)) // of the excess: no more than newcomers lack
	for i := range p.endpoints {
		e := &p.endpoints[i]
		if have, share := e.open*p.total, open*e.fair; have > share {
			m.values[e.index] = byte(min(permille(have-share, have)*part/1000, uint64(p.settings.MaxShedPercentPerMinute)*10) / step)
		}
	}
}

// permille returns a ÷ b, rounded down.
func permille(a, b uint64) uint64 {
	if a > math.MaxUint64/1000 {
		return a / (b/1000 + 1)
	}
	return a * 1000 / max(b, 1)
}

// apply sets what is shed, and reasons.
func (p *plugin) apply(resp *sdk.Response) {
	if !p.state.round {
		return
	}
	sheds := false
	for _, v := range p.state.values {
		sheds = sheds || v > 0
	}
	for i := range p.endpoints {
		e := &p.endpoints[i]
		switch v := min(p.state.values[e.index], 1000/step); {
		case v > 0:
			resp.SetShed(e.index, int(v)*step)
			if p.texts[v] == "" {
				p.texts[v] = "sheds " + strconv.FormatFloat(float64(v)*step/10, 'f', -1, 64) + " % of its connections in a minute"
			}
			resp.SetReason(e.index, p.texts[v])
		case e.isNew && sheds:
			resp.SetReason(e.index, "new: others shed connections")
		}
	}
}
