package agent

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/localhostproxy"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// Bounds of the proxy for NodePorts on loopback addresses. A connection takes up to six file descriptors (two sockets, two pipes
// to splice through), a listener one; together they take at most half of what the process may open.
const (
	maxLocalhostConnections = 1024
	maxLocalhostListeners   = 16384
	fdsPerConnection        = 6
	localhostDialTimeout    = 10 * time.Second
)

func newLocalhostProxy(log *slog.Logger) *localhostproxy.Proxy {
	connections, listeners := maxLocalhostConnections, maxLocalhostListeners
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < 1<<20 {
		connections = min(connections, int(limit.Cur)/4/fdsPerConnection)
		listeners = min(listeners, int(limit.Cur)/4)
	}
	return localhostproxy.New(localhostproxy.Options{Now: time.Now, After: time.After, Log: log, DialTimeout: localhostDialTimeout,
		MaxConnections: connections, MaxPerService: max(1, connections/4), MaxListeners: listeners})
}

func (a *Agent) localhostMetrics() metrics.LocalhostNodePorts {
	s := a.localhost.Stats()
	var rejected []metrics.LocalhostRejected
	if s.Serving {
		rejected = a.localhostRejected()
	}
	return metrics.LocalhostNodePorts{Listeners: s.Listeners, Failing: s.Failing, Unsupported: s.Unsupported, Open: s.Open,
		FamilyListeners: s.FamilyListeners, FamilyFailures: s.FamilyFailures, ListenFailures: s.ListenFailures, Accepted: s.Accepted, DialFailures: s.DialFailures,
		OverTotal: s.OverTotal, OverService: s.OverService, NotLoopback: s.NotLoopback, Rejected: rejected}
}

// localhostRejected reads the kernel's counters; nil if it cannot.
func (a *Agent) localhostRejected() (out []metrics.LocalhostRejected) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	counts, err := dataplane.LocalhostRefused(ctx)
	if err != nil {
		a.log.Warn("reading the counters of packets to NodePorts on loopback addresses failed", "err", err)
		return nil
	}
	for i, f := range [...]model.Family{model.IPv4, model.IPv6} {
		out = append(out, metrics.LocalhostRejected{Family: f, Protocol: model.UDP, Packets: counts[i].UDP},
			metrics.LocalhostRejected{Family: f, Protocol: model.SCTP, Packets: counts[i].SCTP})
	}
	return out
}
