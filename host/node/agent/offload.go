package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

// offloadPeriod is how often links and rules of other programs are looked at, while policies have a trafficHint.
const offloadPeriod = 10 * time.Second

// offloader keeps the flowtable up to date.
type offloader struct {
	backend func() backend.Backend // the one in use
	log     *slog.Logger
	last    atomic.Pointer[backend.Offload] // nil: no policy has a trafficHint
}

// run syncs until ctx ends.
func (o *offloader) run(ctx context.Context) {
	tick := time.NewTicker(offloadPeriod)
	defer tick.Stop()
	for {
		o.sync(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sync brings the flowtable up to date, and logs when it begins and why it does not.
func (o *offloader) sync(ctx context.Context) {
	var now *backend.Offload
	if b, ok := o.backend().(backend.Offloader); ok {
		if s := b.SyncOffload(ctx, probe.PacketFilter); s.Frontends > 0 {
			now = &s
		}
	}
	before := o.last.Swap(now)
	switch {
	case now == nil:
	case now.Reason != "" && (before == nil || before.Reason != now.Reason):
		o.log.Warn("connections of policies with a trafficHint are not offloaded; they are forwarded like others", "frontends", now.Frontends, "reason", now.Reason)
	case now.Links > 0 && (before == nil || before.Links == 0):
		o.log.Info("connections of policies with a trafficHint go by a flowtable", "frontends", now.Frontends, "links", now.Links, "links_left_out", now.Others)
	}
}

// metrics returns what the last sync has found.
func (o *offloader) metrics() metrics.Offload {
	s := o.last.Load()
	if s == nil {
		return metrics.Offload{}
	}
	return metrics.Offload{Frontends: s.Frontends, Links: s.Links, LinksLeftOut: s.Others, Failures: s.Failed}
}
