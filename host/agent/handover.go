package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
)

// HandOverTimeout is how long an agent that is asked to stop waits for a kube-proxy that has been started beside it. The DaemonSet's
// terminationGracePeriodSeconds is longer.
const HandOverTimeout = 100 * time.Second

// answersWithin is more than the 5 s between kube-proxy's attempts to listen on an address that was in use.
const answersWithin = 8 * time.Second

// handOver is called when the agent is asked to stop. If kube-proxy has been started meanwhile, as for a rollback, sluice goes on until
// kube-proxy has programmed all Services, but closes its servers, because kube-proxy needs their ports. It reports whether kube-proxy has: then
// sluice's tables, which come first, have to go. Without objects of kube-proxy's in the kernel it returns at once.
func (a *Agent) handOver(ctx context.Context, stopServers func()) bool {
	found, _ := kubeproxy.Find(ctx, kubeproxy.PortRange{}) // whoever has NodePorts has ClusterIPs, too
	if len(found) == 0 {
		return false
	}
	a.log.Info("kube-proxy has programmed rules; sluice goes on until it has all Services", "object", found[0].String())
	if a.opts.ExtendStop != nil {
		a.opts.ExtendStop(HandOverTimeout)
	}
	stopServers()
	ctx, cancel := context.WithTimeoutCause(ctx, HandOverTimeout, fmt.Errorf("not within %s", HandOverTimeout))
	defer cancel()
	var families []string
	err := a.engine.Do(ctx, func(p *planner.Planner) { families = familiesOf(p.Current()) })
	if err == nil {
		err = waitSynced(ctx, families)
	}
	if err != nil {
		a.log.Warn("sluice's tables stay, before those of kube-proxy: run sluice cleanup when kube-proxy runs", "err", err)
	}
	return err == nil
}

// removeTables removes everything that sluice has programmed.
func (a *Agent) removeTables(ctx context.Context) error {
	removed, err := a.opts.Modes.Cleanup(ctx)
	a.log.Info("sluice stopped; kube-proxy forwards", "removed", removed)
	return err
}

// familiesOf returns the names of the IP families of a plan's frontends.
func familiesOf(p *plan.Plan) (names []string) {
	seen := map[model.Family]bool{}
	for k := range p.Frontends {
		if f := k.Family(); !seen[f] {
			seen[f] = true
			names = append(names, f.String())
		}
	}
	return names
}

// WaitForKubeProxy waits until kube-proxy has programmed the Services that sluice's tables have. It returns nil at once if there are no tables of
// sluice's.
func WaitForKubeProxy(ctx context.Context) error {
	p, err := dataplane.All().Read(ctx)
	if err != nil {
		return err
	}
	if len(p.Frontends) == 0 {
		return nil
	}
	return waitSynced(ctx, familiesOf(p))
}

// waitSynced waits until kube-proxy has programmed the Services of all the given IP families. It returns an error when ctx ends, or if kube-proxy
// does not answer.
func waitSynced(ctx context.Context, families []string) error {
	for end := time.Now().Add(answersWithin); ; {
		answers, synced, err := kubeproxy.Synced(ctx, families)
		switch {
		case synced:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("kube-proxy has not programmed all Services: %w", context.Cause(ctx))
		case err != nil:
			return err
		case !answers && time.Now().After(end): // others may answer
			return fmt.Errorf("kube-proxy does not answer on 127.0.0.1:%d", kubeproxy.MetricsPort)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
