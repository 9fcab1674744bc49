package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/kubeproxy"
)

// ClaimNode makes this process the only Service proxy of the node and configures the host: it locks the data plane, which only
// the end of the process unlocks (its socket is a bare file descriptor), and returns an error while kube-proxy is running.
func ClaimNode(ctx context.Context, cfg *config.Config, removeKubeProxy bool, log *slog.Logger) error {
	if _, err := LockDataPlane(); err != nil {
		return err
	}
	if err := kubeproxy.RequireStopped(ctx, "only one Service proxy can run on a node"); err != nil {
		return err
	}
	if !removeKubeProxy {
		warnLeftovers(ctx, cfg, log)
	}
	configureHost(cfg, log)
	return nil
}

// warnLeftovers logs what kube-proxy has left in the kernel.
func warnLeftovers(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	found, err := kubeproxy.Find(ctx, kubeproxy.PortRange(cfg.NodePortRange))
	if err != nil {
		log.Warn("searching for kube-proxy leftovers failed", "err", err)
	}
	for _, l := range found {
		log.Warn("kube-proxy leftovers may still affect connections; restart with --cleanup-kube-proxy to remove them", "object", l.String())
	}
}

// removeLeftovers removes what kube-proxy has left in the kernel.
func removeLeftovers(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	removed, err := kubeproxy.Remove(ctx, kubeproxy.PortRange(cfg.NodePortRange))
	logRemoved(removed, log)
	return err
}

func logRemoved(removed []kubeproxy.Leftover, log *slog.Logger) {
	for _, l := range removed {
		log.Info("removed kube-proxy leftovers", "object", l.String())
	}
}

// drainLeftovers is removeLeftovers, except that virtual servers with open connections are removed when those have ended,
// or after dataplane.DrainTimeout.
func drainLeftovers(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	start, logged := time.Now(), false
	for {
		removed, busy, err := kubeproxy.Drain(ctx, kubeproxy.PortRange(cfg.NodePortRange))
		if busy > 0 && time.Since(start) > dataplane.DrainTimeout {
			busy = 0
			removed, err = kubeproxy.Remove(ctx, kubeproxy.PortRange(cfg.NodePortRange))
		}
		logRemoved(removed, log)
		switch {
		case err != nil && ctx.Err() == nil:
			log.Error("removing kube-proxy leftovers failed", "err", err)
		case busy > 0 && !logged:
			log.Info("draining virtual servers of kube-proxy", "virtual_servers", busy, "deadline", start.Add(dataplane.DrainTimeout))
			logged = true
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
