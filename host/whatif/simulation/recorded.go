package simulation

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// recorded adds up the connections that a node has opened.
type recorded struct {
	cluster *model.Snapshot
	ports   map[model.EndpointKey][]target // Service ports, by endpoint, of the cluster; nil: it has changed
	last    map[model.EndpointKey]outcomes.Counters
	since   time.Time                 // of last; zero: there is none
	total   map[target]map[int]uint64 // connections to endpoints, by the number of Service ports that they belong to: sums are exact
	counted time.Duration
}

// RecordedDemand returns the demand of Nodes that all do what the node of a recording did: it opened, on average, as many
// connections per second to the endpoints of each Service port. Connections to an endpoint of several Service ports are divided
// among them, those of both families added up. Only the endpoints of Services whose policy needs outcomes are counted: the others
// have no demand. The error is that of the reader, or says that nothing was counted; a recording that was not closed is used as
// far as it goes.
func RecordedDemand(name string, r *recording.Reader) (*Demand, error) {
	c := recorded{total: map[target]map[int]uint64{}}
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, recording.ErrTruncated) && c.cluster != nil {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.add(rec)
	}
	if c.counted == 0 {
		return nil, fmt.Errorf("%s: the recording has no two readings of outcomes: no policy needed them when it was made", name)
	}
	d := &Demand{
		Text: fmt.Sprintf("%s: as many connections of each Node as node %s opened in %s to %d Service ports", name, r.Header.Node,
			c.counted.Round(time.Second), len(c.total)),
	}
	rates := map[target]float64{}
	for t, byShare := range c.total {
		for _, ports := range sortedKeys(byShare) {
			rates[t] += float64(byShare[ports]) / float64(ports) / c.counted.Seconds()
		}
	}
	d.rules = map[scope]map[target]float64{{kind: eachNode}: rates}
	return d, nil
}

func (c *recorded) add(rec *recording.Record) {
	if rec.State {
		c.cluster = model.NewSnapshot()
		if rec.Lost > 0 {
			c.since = time.Time{}
		}
	}
	for _, change := range rec.Changes {
		c.cluster.Apply(change)
		c.ports = nil
	}
	if rec.Reading == nil {
		return
	}
	switch rec.Reading.Kind {
	case recording.Read:
		if !c.since.IsZero() {
			c.count(rec.Reading.Counters)
			c.counted += rec.At.Sub(c.since)
		}
		c.last, c.since = maps.Clone(rec.Reading.Counters), rec.At
	case recording.Begun:
		c.last, c.since = nil, rec.At
	case recording.Stopped, recording.Rebased:
		c.since = time.Time{}
	}
}

// count adds what was counted since the last reading.
func (c *recorded) count(now map[model.EndpointKey]outcomes.Counters) {
	if c.ports == nil {
		c.ports = portsOfEndpoints(c.cluster)
	}
	for e, n := range now {
		more := n.Attempts
		if before := c.last[e].Attempts; before <= more { // otherwise it is counted anew
			more -= before
		}
		for _, p := range c.ports[e] {
			if c.total[p] == nil {
				c.total[p] = map[int]uint64{}
			}
			c.total[p][len(c.ports[e])] += more
		}
	}
}

// portsOfEndpoints returns which Service ports each endpoint belongs to: those of its Service, and those that routes split over
// its Service.
func portsOfEndpoints(c *model.Snapshot) map[model.EndpointKey][]target {
	own := map[model.PortName][]model.EndpointKey{}
	for name, list := range c.Slices {
		for _, s := range list {
			for _, p := range s.Ports {
				of := model.PortName{Service: name, Port: p.Name, Protocol: p.Protocol}
				for i := range s.Endpoints {
					own[of] = append(own[of], model.EndpointKey{Addr: netip.AddrPortFrom(s.Endpoints[i].Addr, p.Port), Protocol: p.Protocol})
				}
			}
		}
	}
	out := map[model.EndpointKey][]target{}
	all := newRoutes(c)
	for name, svc := range c.Services {
		for i := range svc.Ports {
			of := target{name.Namespace, name.Name, svc.Ports[i].Name}
			for _, port := range all.portsBehind(c, svc, &svc.Ports[i]) {
				for _, e := range own[port] {
					if !slices.Contains(out[e], of) { // slices may overlap
						out[e] = append(out[e], of)
					}
				}
			}
		}
	}
	return out
}
