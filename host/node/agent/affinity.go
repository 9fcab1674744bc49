package agent

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// maxFullLogged bounds the Service ports that one reading logs.
const maxFullLogged = 20

// watchAffinity reads every sync period how many clients with session affinity are recorded, and reports Service ports
// that have no room for more, until ctx ends.
func (a *Agent) watchAffinity(ctx context.Context) {
	tick := time.NewTicker(a.config().SyncPeriod)
	defer tick.Stop()
	full := map[model.PortName]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u, err := dataplane.AffinityUsage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("reading the usage of session affinity failed", "err", err)
			}
			continue
		}
		a.telemetry.affinity.Store(&metrics.AffinityUsage{Counted: u.Counted, IPv4: u.Clients4, IPv6: u.Clients6, Full: len(u.Full)})
		full = a.reportFull(full, u.Full)
	}
}

// reportFull reports the Service ports that were not full before, and returns those that are.
func (a *Agent) reportFull(before map[model.PortName]bool, now []model.PortName) map[model.PortName]bool {
	full, logged := map[model.PortName]bool{}, 0
	for _, p := range now {
		full[p] = true
		if before[p] {
			continue
		}
		if logged++; logged <= maxFullLogged {
			a.log.Warn("session affinity has no room for more clients of a Service port; their connections are balanced",
				"service", p.Service, "port", p.Port, "fields", "sessionAffinity.reservedClients, sessionAffinity.sharedClients")
			a.telemetry.events.ServiceWarning(p.Service, kube.ReasonSessionAffinityFull,
				"session affinity has no room for more clients on this node; their connections are balanced")
		}
	}
	if logged > maxFullLogged {
		a.log.Warn("session affinity has no room for more clients of further Service ports", "service_ports", logged-maxFullLogged)
	}
	if len(before) > 0 && len(full) == 0 {
		a.log.Info("session affinity has room for all clients again")
	}
	return full
}
