package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
)

// warnLeftovers warns of what kube-proxy has left.
func warnLeftovers(ctx context.Context, log *slog.Logger) {
	found, err := kubeproxy.Find(ctx)
	if err != nil {
		log.Warn("not all of what kube-proxy may have left can be seen", "err", err)
	}
	for _, l := range found {
		log.Warn("kube-proxy has left this, which may go on deciding about connections: start with --cleanup-kube-proxy to remove it", "what", l.String())
	}
}

// removeLeftovers removes it.
func removeLeftovers(ctx context.Context, log *slog.Logger) error {
	removed, err := kubeproxy.Remove(ctx)
	for _, l := range removed {
		log.Info("removed what kube-proxy had left", "what", l.String())
	}
	return err
}

// drainLeftovers removes it, but for virtual servers with open connections, which go with the last of those or after
// the time that mode ipvs gives its own.
func drainLeftovers(ctx context.Context, log *slog.Logger) {
	begun, said := time.Now(), false
	for {
		removed, busy, err := kubeproxy.Retire(ctx)
		if busy > 0 && time.Since(begun) > dataplane.DrainTimeout {
			busy = 0
			removed, err = kubeproxy.Remove(ctx)
		}
		for _, l := range removed {
			log.Info("removed what kube-proxy had left", "what", l.String())
		}
		switch {
		case err != nil && ctx.Err() == nil:
			log.Error("not all of what kube-proxy has left could be removed", "err", err)
		case busy > 0 && !said:
			log.Info("virtual servers of kube-proxy's stay for their connections, and get no new ones", "servers", busy, "until", begun.Add(dataplane.DrainTimeout))
			said = true
		}
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(dataplane.DrainInterval):
		}
	}
}

// onFirstSync begins things, once, when the data plane holds all that was planned.
type onFirstSync struct {
	engine.Observers // nobody
	start            func(func())
	do               []func()
	once             sync.Once
}

// OnApply implements engine.Observer.
func (f *onFirstSync) OnApply(p *engine.ApplyResult) {
	if p.Synced {
		f.once.Do(func() {
			for _, do := range f.do {
				f.start(do)
			}
		})
	}
}
