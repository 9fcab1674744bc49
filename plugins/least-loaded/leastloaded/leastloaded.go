// Package leastloaded implements the plugin least-loaded: endpoints with fewer open connections from this node than their share
// get more new ones, and those with more get fewer.
package leastloaded

import (
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/loads"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only buffers between calls: history is in the state of the request. The load of an endpoint is its open
// connections, relative to its part of all of them.
type plugin struct {
	settings settings
	state    state
	set      loads.Set
	buf      []byte
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
	p.set.Collect(req, &p.settings.Settings)
	if len(p.set.Endpoints) < 2 {
		return nil
	}
	why := p.step(req, now)
	p.set.Apply(req, resp, why)
	p.set.Remember(resp)
	p.buf = p.state.append(p.buf[:0])
	resp.SetState(p.buf)
	loads.Requeue(resp, &p.settings.Settings, p.state.stepped, now)
	return nil
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
	for i := range p.set.Endpoints {
		e := &p.set.Endpoints[i]
		if n, counted := connections(req, e); counted {
			open, all = open+n, all+e.Fair
		}
	}
	for i := range p.set.Endpoints {
		e := &p.set.Endpoints[i]
		if n, counted := connections(req, e); counted && !e.IsNew {
			// One more on both sides: few connections say little, and none is not infinitely less than one.
			p.set.Follow(e, (n+1)*all*loads.One/(open*e.Fair+all))
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

// connections returns the open connections of an endpoint.
func connections(req *sdk.Request, e *loads.Endpoint) (n uint64, counted bool) {
	open, counted := req.Endpoint(e.Index).Connections()
	return min(uint64(open), maxOpen), counted
}
