package agent

import (
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/localhostproxy"
	"github.com/sluice-proxy/sluice/host/metrics"
)

// Bounds of the proxy for NodePorts on loopback addresses. A connection takes up to six file descriptors (two sockets, two pipes to
// splice through), a listener one; together they take at most half of what the process may open.
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
	return metrics.LocalhostNodePorts{Listeners: s.Listeners, Failing: s.Failing, Unsupported: s.Unsupported, Open: s.Open,
		FamilyListeners: s.FamilyListeners, FamilyFailures: s.FamilyFailures, ListenFailures: s.ListenFailures, Accepted: s.Accepted, DialFailures: s.DialFailures,
		OverTotal: s.OverTotal, OverService: s.OverService, NotLoopback: s.NotLoopback}
}
