package agent

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/metrics"
)

// statsTimeout is how long IPVS may take to be read for metrics.
const statsTimeout = 5 * time.Second

// ipvs reads what IPVS counts, where the configuration in force wants it among the metrics. What an earlier run in mode
// ipvs has left counts too.
func (o *observation) ipvs() (servers []metrics.IPVSVirtualServer, wanted bool, err error) {
	if !o.config.Load().IPVS.ConnectionMetrics {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	counts, err := o.modes.Stats(ctx, metrics.MaxIPVSVirtualServers)
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
