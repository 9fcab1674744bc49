package agent

import (
	"context"

	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// retryMetrics reads the kernel's counters, if it can.
func (a *Agent) retryMetrics() (metrics.Retries, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	r, err := dataplane.Retries(ctx)
	if err != nil {
		a.log.Warn("reading the counters of refused connections failed", "err", err)
	}
	return metrics.Retries{Retried: r.Retried, NoRoom: r.NoRoom}, err == nil
}
