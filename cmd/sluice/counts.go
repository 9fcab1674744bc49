package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/metrics"
)

// countsWithin is how long IPVS may take to be read for metrics.
const countsWithin = 5 * time.Second

// ipvs reads what IPVS counts, where the configuration in force wants it among the metrics. What an earlier run in mode
// ipvs has left counts too.
func (o *observation) ipvs() (servers []metrics.IPVSVirtualServer, wanted bool, err error) {
	if !o.config.Load().IPVS.ConnectionMetrics {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), countsWithin)
	defer cancel()
	counts, err := ipvs.ReadStats(ctx, metrics.MaxIPVSVirtualServers)
	if errors.Is(err, ipvs.ErrNoIPVS) {
		return nil, true, nil
	}
	if err != nil {
		o.log.Warn("what IPVS counts cannot be read for metrics", "err", err)
		return nil, true, err
	}
	for i := range counts {
		servers = append(servers, ipvsServer(&counts[i]))
	}
	return servers, true, nil
}

func ipvsServer(c *ipvs.ServerStats) metrics.IPVSVirtualServer {
	s := metrics.IPVSVirtualServer{
		Address: c.Server, Pool: string(c.Pool), Scheduler: c.Scheduler, RealServers: len(c.Destinations),
		Connections: c.Connections, PacketsIn: c.PacketsIn, PacketsOut: c.PacketsOut, BytesIn: c.BytesIn, BytesOut: c.BytesOut,
	}
	if c.Pool != "" {
		s.Address, s.Port = c.Frontend.String(), c.Owner.Port
		s.Namespace, s.Service = c.Owner.Service.Namespace, c.Owner.Service.Name
	}
	for _, m := range c.Destinations {
		s.ActiveConnections += m.Active
		s.InactiveConnections += m.Inactive
		if m.Draining {
			s.DrainingRealServers++
		}
	}
	return s
}

// connections are those of a member, as the kernel of mode ipvs has them.
type connections struct {
	Active   int `json:"active"`
	Inactive int `json:"inactive"`
}

func (c *connections) String() string {
	return fmt.Sprintf("%d active, %d inactive", c.Active, c.Inactive)
}

// addCounts fills in the connections of mode ipvs. Where they cannot be read, nothing is lost: the weights are there.
func (x *explanation) addCounts(counts []ipvs.ServerStats) {
	for i := range counts {
		c := &counts[i]
		if c.Pool == "" || c.Owner.Service.String() != x.Service {
			continue
		}
		for j := range x.Pools {
			p := &x.Pools[j]
			if (p.Pool == "local") != (c.Pool == ipvs.PoolOutside) && c.Pool != ipvs.PoolAll {
				continue
			}
			for e := range p.Endpoints {
				x.count(&p.Endpoints[e], c)
			}
		}
	}
}

// count looks for an endpoint among the members of a virtual server.
func (*explanation) count(e *explainEndpoint, c *ipvs.ServerStats) {
	for i := range e.Kernel {
		if e.Kernel[i].Frontend != c.Frontend.String() {
			continue
		}
		for _, m := range c.Destinations {
			if m.Addr.String() == e.Address {
				e.Kernel[i].Connections = &connections{m.Active, m.Inactive}
			}
		}
	}
}
