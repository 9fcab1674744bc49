package agent

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// statsTimeout bounds reading IPVS statistics at a scrape.
const statsTimeout = 5 * time.Second

// ipvsStats reads the kernel's statistics of virtual servers if the active configuration enables them. Those that an
// earlier run in mode ipvs has left are included.
func (t *telemetry) ipvsStats() (servers []metrics.IPVSVirtualServer, enabled bool, err error) {
	if !t.config().IPVS.ConnectionMetrics {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	stats, err := t.modes.Stats(ctx, metrics.MaxIPVSVirtualServers)
	if err != nil {
		t.log.Warn("reading IPVS statistics failed", "err", err)
		return nil, true, err
	}
	for i := range stats {
		servers = append(servers, ipvsMetrics(&stats[i]))
	}
	return servers, true, nil
}

func ipvsMetrics(c *backend.ServerStats) metrics.IPVSVirtualServer {
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
