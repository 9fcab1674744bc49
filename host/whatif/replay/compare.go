package replay

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// comparison is how the runs differ, as far as the replay is.
type comparison struct {
	ports map[port]*difference
	owner map[plan.Key]port
	dirty map[port]bool
	series
}

// port is a Service port in one family.
type port struct {
	model.PortName
	family model.Family
}

// difference is how the runs differ for a Service port.
type difference struct {
	differs  map[plan.Key]float64
	now      float64 // largest of differs
	since    time.Time
	integral float64 // of now, over seconds
	seconds  float64
	max      float64
	current  *Period
	periods  []Period
	omitted  int
}

func newComparison() *comparison {
	return &comparison{ports: map[port]*difference{}, owner: map[plan.Key]port{}, dirty: map[port]bool{}}
}

// update compares a frontend of both runs; nil: there is none.
func (c *comparison) update(p *replay, key plan.Key, a, b *plan.Frontend) {
	of := a
	if of == nil {
		of = b
	}
	if of != nil && !p.options.Only(of.Owner.Service) {
		of = nil
	}
	before, known := c.owner[key]
	if known && (of == nil || of.Owner != before.PortName) {
		delete(c.owner, key)
		if d := c.ports[before]; d != nil {
			delete(d.differs, key)
			c.dirty[before] = true
		}
	}
	if of == nil {
		return
	}
	at := port{of.Owner, key.Family()}
	c.owner[key] = at
	d := c.ports[at]
	share := divergence(a, b)
	if share == 0 && d == nil {
		return
	}
	if d == nil {
		d = &difference{differs: map[plan.Key]float64{}, since: p.now()}
		c.ports[at] = d
	}
	if share == 0 {
		delete(d.differs, key)
	} else {
		d.differs[key] = share
	}
	c.dirty[at] = true
}

// settle brings the differences of the ports that have been updated up to date.
func (c *comparison) settle(p *replay) {
	c.series.pass(p.clock.Now())
	for _, at := range slices.SortedFunc(maps.Keys(c.dirty), comparePorts) {
		d := c.ports[at]
		d.pass(p.now())
		var worst plan.Key
		before := d.now
		d.now = 0
		for _, key := range slices.SortedFunc(maps.Keys(d.differs), plan.Key.Compare) {
			if v := d.differs[key]; v > d.now {
				d.now, worst = v, key
			}
		}
		d.max = max(d.max, d.now)
		c.set(before, d.now)
		switch {
		case d.now == 0:
			d.close(p.now())
		case d.current == nil:
			d.current = &Period{From: p.now().UTC()}
			fallthrough
		case d.now > d.current.Divergence:
			if len(d.periods) < MaxPeriods {
				p.describe(d.current, at, worst, d.now)
			}
			d.current.Divergence = d.now
		}
	}
	clear(c.dirty)
}

func comparePorts(a, b port) int {
	return cmp.Or(a.Compare(b.PortName), cmp.Compare(a.family, b.family))
}

// pass adds the time since the last change.
func (d *difference) pass(now time.Time) {
	if d.now > 0 {
		s := now.Sub(d.since).Seconds()
		d.seconds += s
		d.integral += s * d.now
	}
	d.since = now
}

// close ends the period in which the runs differ.
func (d *difference) close(now time.Time) {
	if d.current == nil {
		return
	}
	d.current.To = now.UTC()
	if len(d.periods) < MaxPeriods {
		d.periods = append(d.periods, *d.current)
	} else {
		d.omitted++
	}
	d.current = nil
}

// describe says how the runs differ on a frontend.
func (p *replay) describe(out *Period, at port, key plan.Key, share float64) {
	a, b := p.runs[0].planner.Current().Frontends[key], p.runs[1].planner.Current().Frontends[key]
	x, y := shares(poolOf(a, false)), shares(poolOf(b, false))
	if distance(x, y) != share {
		x, y = shares(poolOf(a, true)), shares(poolOf(b, true))
	}
	out.At, out.Frontend, out.Endpoints = p.now().UTC(), key.String(), nil
	all := maps.Clone(x)
	maps.Copy(all, y)
	for addr := range all {
		if addr.IsValid() && x[addr] != y[addr] {
			out.Endpoints = append(out.Endpoints, Endpoint{Address: addr.String(), Pair: verdict.Pair{Candidate: x[addr], Baseline: y[addr]}})
		}
	}
	slices.SortFunc(out.Endpoints, func(e, f Endpoint) int {
		return cmp.Or(-cmp.Compare(math.Abs(e.Candidate-e.Baseline), math.Abs(f.Candidate-f.Baseline)), cmp.Compare(e.Address, f.Address))
	})
	out.Endpoints = out.Endpoints[:min(len(out.Endpoints), MaxEndpoints)]
	for _, service := range append(p.backendsOf(at.Service), at.Service) {
		for i := range out.Endpoints {
			out.Endpoints[i].setPod(p.world.Slices[service])
		}
	}
}

// backendsOf returns the Services that routes split the connections to a Service over.
func (p *replay) backendsOf(parent model.Name) (out []model.Name) {
	for _, r := range p.world.Routes {
		if parents, backends := r.Services(); slices.Contains(parents, parent) {
			out = append(out, backends...)
		}
	}
	return out
}

// setPod sets the Pod and the zone that slices have of the address.
func (e *Endpoint) setPod(all []*model.EndpointSlice) {
	addr := netip.MustParseAddrPort(e.Address).Addr()
	for _, s := range all {
		for j := range s.Endpoints {
			if s.Endpoints[j].Addr == addr {
				e.Pod, e.Zone = s.Endpoints[j].Pod, s.Endpoints[j].Zone
			}
		}
	}
}

// divergence returns the share of new connections through a frontend that goes elsewhere, the larger one of both kinds of
// sources.
func divergence(a, b *plan.Frontend) float64 {
	inside := distance(shares(poolOf(a, false)), shares(poolOf(b, false)))
	if (a == nil || a.Outside == nil) && (b == nil || b.Outside == nil) {
		return inside
	}
	return max(inside, distance(shares(poolOf(a, true)), shares(poolOf(b, true))))
}

// poolOf returns the pool of a frontend for sources inside or outside of the cluster; nil: there is no frontend.
func poolOf(f *plan.Frontend, outside bool) *plan.Pool {
	switch {
	case f == nil:
		return nil
	case outside && f.Outside != nil:
		return f.Outside
	}
	return &f.Pool
}

// shares returns the share of each endpoint; the zero address has what goes nowhere.
func shares(p *plan.Pool) map[netip.AddrPort]float64 {
	out := map[netip.AddrPort]float64{}
	if p == nil || p.Verdict != plan.Forward {
		out[netip.AddrPort{}] = 1
		return out
	}
	total := float64(p.Total())
	for i := range p.Endpoints {
		switch e := &p.Endpoints[i]; {
		case e.Weight == 0:
		case plan.IsRefusing(e.Addr.Addr()): // the part of a route's backend that has no endpoints
			out[netip.AddrPort{}] = float64(e.Weight) / total
		default:
			out[e.Addr] = float64(e.Weight) / total
		}
	}
	return out
}

// distance returns the part of x that is elsewhere in y. It is the same for the same maps, in whatever order.
func distance(x, y map[netip.AddrPort]float64) float64 {
	if maps.Equal(x, y) {
		return 0
	}
	var moved []float64
	for a, v := range x {
		if w := y[a]; v > w {
			moved = append(moved, v-w)
		}
	}
	slices.Sort(moved)
	sum := 0.0
	for _, v := range moved {
		sum += v
	}
	return sum
}

// finish ends the replay.
func (p *replay) finish() *Result {
	out := p.result
	out.To = p.now().UTC()
	if p.world != nil {
		for name := range p.world.Services {
			if !p.options.Only(name) {
				continue
			}
			out.Services++
			for _, s := range p.world.Slices[name] {
				out.Endpoints += len(s.Endpoints)
			}
		}
	}
	for _, r := range p.runs {
		out.Runs = append(out.Runs, r.result)
		if out.Readings == 0 && r.planner.CountsOutcomes() {
			out.Notes = append(out.Notes, fmt.Sprintf("%s: its policies need the outcomes of connections, and the recording has none: nothing needed them when it was made", verdict.Label(r.File)))
		}
	}
	if p.compare != nil {
		out.Comparison = p.compare.finish(p)
		out.Comparison.Metrics = verdict.Compare(out.Runs[0].Summary.metrics(), out.Runs[1].Summary.metrics())
	}
	var metrics [][]verdict.Metric
	for i := range out.Runs {
		metrics = append(metrics, out.Metrics(i))
	}
	p.options.Conditions.AddRuns(metrics...)
	return out
}

// finish returns the result of the comparison.
func (c *comparison) finish(p *replay) *Comparison {
	out := &Comparison{Services: []Service{}}
	length, all := p.clock.Now().Seconds(), 0.0
	c.series.pass(p.clock.Now())
	type entry struct {
		port
		*difference
	}
	var list []entry
	for at, d := range c.ports {
		d.pass(p.now())
		d.close(p.now())
		out.MaxDivergence = max(out.MaxDivergence, d.max)
		list = append(list, entry{at, d})
	}
	slices.SortFunc(list, func(a, b entry) int {
		return cmp.Or(-cmp.Compare(a.integral, b.integral), -cmp.Compare(a.max, b.max), comparePorts(a.port, b.port))
	})
	for _, e := range list {
		all += e.integral
	}
	ports := map[port]bool{}
	for _, at := range c.owner {
		ports[at] = true
	}
	for at := range c.ports {
		ports[at] = true
	}
	if length > 0 && len(ports) > 0 {
		out.MeanDivergence = all / length / float64(len(ports))
	}
	out.Series = c.series.finish(len(ports))
	out.Differing = len(list)
	for i, e := range list {
		name := e.Port
		if name == "" {
			name = p.portNumber(e.PortName)
		}
		s := Service{
			ServicePort:   verdict.ServicePort{Service: e.Service.String(), Port: name, Protocol: e.Protocol.String(), Family: e.family.String()},
			MaxDivergence: e.max, Seconds: e.seconds, Periods: e.periods, Omitted: e.omitted,
		}
		if length > 0 {
			s.MeanDivergence = e.integral / length
		}
		if p.options.Conditions.AddService(s.Service, s.Service+":"+s.Port, s.Metrics(), s.Metrics()); i < MaxServices {
			out.Services = append(out.Services, s)
		}
	}
	for at := range ports { // those that do not differ
		if c.ports[at] == nil {
			p.options.Conditions.AddService(at.Service.String(), at.String(), new(Service).Metrics(), new(Service).Metrics())
		}
	}
	return out
}

// portNumber returns the number of a Service port, "" if it does not exist any more.
func (p *replay) portNumber(n model.PortName) string {
	if svc := p.world.Services[n.Service]; svc != nil {
		for i := range svc.Ports {
			if svc.Ports[i].Name == n.Port && svc.Ports[i].Protocol == n.Protocol {
				return strconv.Itoa(int(svc.Ports[i].Port))
			}
		}
	}
	return ""
}
