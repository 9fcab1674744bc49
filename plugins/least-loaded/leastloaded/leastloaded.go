// Package leastloaded implements the plugin least-loaded: endpoints with fewer open connections from this node than their share
// get more new ones, and those with more get fewer.
package leastloaded

import (
	"strconv"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only buffers between calls: history is in the state of the request.
type plugin struct {
	settings settings

	state     state
	endpoints []endpoint // those that get connections
	fair      []uint64   // of all endpoints
	buf       []byte
	reasons   []reason // by parts
}

// reason is the reason of endpoints with a number of parts. Formatting one costs a guest more than deciding an endpoint, and
// adding one compares texts.
type reason struct {
	text  string
	id    sdk.ReasonID // in the response
	added bool
}

// endpoint is an endpoint that gets connections.
type endpoint struct {
	index   int
	fair    uint64 // part of the connections
	open    uint64 // connections
	counted bool
	isNew   bool   // it has no average
	load    uint64 // in 1/one
	parts   uint64 // of its share, of which a fair one has scale
}

// maxOpen bounds a number of connections, so that products fit 64 bits.
const maxOpen = 1 << 26

// newer is how much later connections must have been counted to be another count, in milliseconds. A request has the time in
// whole seconds, but the age of the count in milliseconds, so the time of one count differs by less between requests.
const newer = 1000

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Needs implements sdk.Needer.
func (*plugin) Needs() sdk.Need { return sdk.NeedConnections | sdk.NeedEndpointState }

// Decide multiplies the share of each endpoint by the inverse of its average load.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	now := int64(req.Now()) / 1000
	p.state.read(req.State(), now)
	p.collect(req)
	if len(p.endpoints) < 2 {
		return nil
	}
	why := p.step(req, now)
	p.apply(req, resp, why)
	p.remember(resp, now)
	return nil
}

// collect collects the endpoints that get connections.
func (p *plugin) collect(req *sdk.Request) {
	p.endpoints = p.endpoints[:0]
	p.fair = weights.Fair(p.fair, req)
	for i, fair := range p.fair {
		if fair > 0 {
			n, counted := req.Endpoint(i).Connections()
			p.endpoints = append(p.endpoints, endpoint{index: i, fair: fair, open: min(uint64(n), maxOpen), counted: counted})
		}
	}
	for i := range p.endpoints {
		e := &p.endpoints[i]
		e.load, e.isNew = average(req, e.index)
		e.load = min(max(e.load, p.settings.least()), p.settings.most()) // other settings, or another writer, may have left it
	}
}

// step changes the averages, if it is time and the connections have been counted since it last did. What a new endpoint had
// before it got its share says nothing: its average begins with the next step. step returns why the averages are held, if the
// count is too old or there is none.
func (p *plugin) step(req *sdk.Request, now int64) (why string) {
	s, m := &p.settings, &p.state
	age, counted := req.ConnectionsAge()
	if !counted {
		return "held: open connections are not counted"
	}
	if age > sdk.Duration(s.MaxAgeSeconds)*sdk.Second {
		return "held: open connections have not been counted for more than " + strconv.FormatInt(s.MaxAgeSeconds, 10) + " s"
	}
	at := int64(req.Now()) - age.Milliseconds()
	if m.stepped == 0 { // all are new; the steps of Services and nodes are at different times
		m.stepped, m.counted = now-s.IntervalSeconds+1+p.phase(req), at
		return ""
	}
	if now < m.stepped+s.IntervalSeconds || at < m.counted+newer {
		return ""
	}
	open, all := uint64(0), uint64(0) // of the endpoints that are counted: connections, sum of parts
	for i := range p.endpoints {
		if e := &p.endpoints[i]; e.counted {
			open, all = open+e.open, all+e.fair
		}
	}
	for i := range p.endpoints {
		if e := &p.endpoints[i]; e.counted && !e.isNew {
			// One more on both sides: few connections say little, and none is not infinitely less than one.
			e.load = s.smooth(e.load, (e.open+1)*all*one/(open*e.fair+all))
		}
	}
	m.stepped, m.counted = now, at
	return ""
}

// phase returns by how much the steps of this Service port on this node are later than others', in seconds less than an interval.
func (p *plugin) phase(req *sdk.Request) int64 {
	h := weights.Mix(weights.HashText(req.Text(req.Node())) ^ weights.HashText(req.Text(req.Namespace())+"/"+req.Text(req.Service())) ^ uint32(req.PortNumber()))
	return int64(uint64(h) * uint64(p.settings.IntervalSeconds) >> 32)
}

// smooth returns the average after a reading, both in 1/one.
func (s *settings) smooth(average, reading uint64) uint64 {
	bound := uint64(s.MaxChangePercent)
	off := max(average, reading) - min(average, reading)
	if off*100 <= average*uint64(s.TolerancePercent) {
		return average
	}
	change := off * uint64(s.SmoothingPercent) / 100
	if reading > average {
		average += min(change, average*bound/100)
	} else {
		average -= min(change, average*bound/(100+bound))
	}
	return min(max(average, s.least()), s.most())
}

// least and most are the bounds of an average, beyond which the share does not follow.
func (s *settings) least() uint64 { return one * 100 / uint64(s.MaxPercent) }
func (s *settings) most() uint64  { return one * 100 / uint64(s.MinPercent) }

// scale is the number of parts of a fair share: shares change in steps of 5 % of it.
const scale = 20

// apply sets shares and reasons. If all loads are equal, they stay as they are.
func (p *plugin) apply(req *sdk.Request, resp *sdk.Response, why string) {
	equal := true
	for i := range p.endpoints {
		e := &p.endpoints[i]
		e.parts = (scale*one + e.load/2) / e.load
		equal = equal && e.parts == p.endpoints[0].parts
	}
	keep(resp, p.endpoints, why)
	if equal {
		return
	}
	for i := range p.reasons {
		p.reasons[i].added = false
	}
	for i := range p.endpoints {
		e := &p.endpoints[i]
		resp.SetShare(e.index, max(1, req.Endpoint(e.index).Share()*int(e.parts)/scale))
		if why == "" {
			resp.SetReasonID(e.index, p.reason(resp, e.parts))
		}
	}
}

// reason returns the reason of endpoints with parts of their share.
func (p *plugin) reason(resp *sdk.Response, parts uint64) sdk.ReasonID {
	for uint64(len(p.reasons)) <= parts {
		p.reasons = append(p.reasons, reason{})
	}
	r := &p.reasons[parts]
	if !r.added {
		if r.text == "" {
			r.text = strconv.FormatUint(parts*100/scale, 10) + " % of its share"
		}
		r.id, r.added = resp.AddReason(r.text), true
	}
	return r.id
}

// keep sets a reason for endpoints, if there is one.
func keep(resp *sdk.Response, endpoints []endpoint, why string) {
	if why == "" {
		return
	}
	id := resp.AddReason(why)
	for i := range endpoints {
		resp.SetReasonID(endpoints[i].index, id)
	}
}

// remember sets the state, and requests the next step.
func (p *plugin) remember(resp *sdk.Response, now int64) {
	m := &p.state
	for i := range p.endpoints {
		e := &p.endpoints[i]
		resp.SetEndpointState(e.index, le.AppendUint16(p.buf[:0], uint16(e.load)))
	}
	p.buf = m.append(p.buf[:0])
	resp.SetState(p.buf)
	wait := p.settings.IntervalSeconds
	if left := m.stepped + wait - now; m.stepped != 0 && left > 0 {
		wait = left
	}
	resp.RequeueAfter(sdk.Duration(wait) * sdk.Second)
}
