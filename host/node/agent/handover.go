package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/kubeproxy"
)

// HandOverTimeout is how long an agent that is asked to stop waits for a kube-proxy that has been started beside it. The
// DaemonSet's terminationGracePeriodSeconds is longer.
const HandOverTimeout = 100 * time.Second

// answersWithin is more than the 5 s between kube-proxy's attempts to listen on an address that was in use.
const answersWithin = 8 * time.Second

// lookWithin is how long it may take to find out whether kube-proxy follows: the kernel lists links under a lock that is held for
// seconds while many network namespaces come and go. labelsWithin is the part of it that the API server has.
const (
	lookWithin   = 10 * time.Second
	labelsWithin = 3 * time.Second
)

// The label of a Node by which an installation and a rollback say which proxy forwards there, and its value for kube-proxy.
const (
	proxyLabel     = "sluice.dev/proxy"
	proxyKubeProxy = "kube-proxy"
)

// handOver is called when the agent is asked to stop. If kube-proxy follows, sluice goes on until it has programmed all Services,
// but closes its servers, because kube-proxy needs their ports. It reports whether kube-proxy has: then sluice's tables, which
// come first, have to go. Otherwise handOver returns at once.
func (a *Agent) handOver(ctx context.Context, stopServers func()) bool {
	a.extendStop(lookWithin)
	families, labeled, found := a.successor(ctx)
	a.extendStop(0)
	if found == 0 && !labeled {
		return false
	}
	a.log.Info("kube-proxy follows; sluice goes on until it has programmed all Services", "label", labeled, "found", found)
	a.extendStop(HandOverTimeout)
	stopServers()
	ctx, cancel := context.WithTimeoutCause(ctx, HandOverTimeout, fmt.Errorf("not within %s", HandOverTimeout))
	defer cancel()
	within := answersWithin
	if labeled { // it may not have been started yet
		within = HandOverTimeout
	}
	if err := waitSynced(ctx, families, within); err != nil {
		a.log.Warn("sluice's tables stay, before those of kube-proxy: run sluice cleanup when kube-proxy runs", "err", err)
		return false
	}
	return true
}

// successor finds out whether kube-proxy follows: if the Node's label says so, or if it has been started meanwhile and found, the
// number of its objects in the kernel, is not 0. families are those of the Services that it has to program then.
func (a *Agent) successor(ctx context.Context) (families []string, labeled bool, found int) {
	ctx, stop := context.WithTimeout(ctx, lookWithin)
	defer stop()
	labels := a.labelsNow(ctx)
	err := a.engine.Do(ctx, func(p *planner.Planner) {
		families = familiesOf(p.Current())
		if n := p.LastNode(); n != nil && labels == nil {
			labels = n.Labels
		}
	})
	if err != nil {
		return nil, false, 0
	}
	objects, _ := kubeproxy.Find(ctx, kubeproxy.PortRange{}) // whoever has NodePorts has ClusterIPs, too
	return families, labels[proxyLabel] == proxyKubeProxy, len(objects)
}

// labelsNow returns the labels of the Node as the API server has them now, or nil if it does not say: whoever sets a label that
// stops the agent stops it at once, and the watch may tell of the label later.
func (a *Agent) labelsNow(ctx context.Context) map[string]string {
	if a.opts.Client == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, labelsWithin)
	defer stop()
	n, err := a.opts.Client.NodeNow(ctx, a.config().HostnameOverride)
	if err != nil {
		a.log.Info("the Node's labels are those that were last known", "err", err)
		return nil
	}
	return n.Labels
}

// extendStop says that the agent may take longer to stop.
func (a *Agent) extendStop(by time.Duration) {
	if a.opts.ExtendStop != nil {
		a.opts.ExtendStop(by)
	}
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

// WaitForKubeProxy waits until kube-proxy has programmed the Services that sluice's tables have. It returns nil at once if there
// are no tables of sluice's.
func WaitForKubeProxy(ctx context.Context) error {
	p, err := dataplane.All().Read(ctx)
	if err != nil {
		return err
	}
	if len(p.Frontends) == 0 {
		return nil
	}
	return waitSynced(ctx, familiesOf(p), HandOverTimeout)
}

// waitSynced waits until kube-proxy has programmed the Services of all the given IP families. It returns an error when ctx ends,
// or if kube-proxy does not answer within a time.
func waitSynced(ctx context.Context, families []string, within time.Duration) error {
	for end := time.Now().Add(within); ; {
		answers, synced, err := kubeproxy.Synced(ctx, families)
		switch {
		case synced:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("kube-proxy has not programmed all Services: %w", errors.Join(context.Cause(ctx), err))
		case err != nil && time.Now().After(end):
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
