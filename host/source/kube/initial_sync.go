package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// How long the initial sync waits, once Services and EndpointSlices have arrived, for objects that forwarding does not need: the
// Node with its addresses, and the Node's podCIDRs where they identify Pods (host/RULES.md, rule 46).
const (
	nodeWait     = 30 * time.Second
	podCIDRsWait = 5 * time.Minute
)

// waitForInitialSync waits for Services and EndpointSlices without a limit, then for the other resources at most as long
// as the constants above say (rules 10 and 46).
func (s *Source) waitForInitialSync(ctx context.Context, demanded *demanded) error {
	var nodeDeadline, podCIDRsDeadline <-chan time.Time
	waitForRest, logWaiting := true, false
	for {
		demanded.nodes.reconcile()
		if s.services.isSynced() {
			demanded.namespaces.reconcile()
			demanded.pods.reconcile()
		}
		if s.services.isSynced() && s.slices.isSynced() {
			if nodeDeadline == nil {
				nodeDeadline, podCIDRsDeadline = s.opt.After(nodeWait), s.opt.After(podCIDRsWait)
				logWaiting = true
			}
			hasPodCIDRs := !s.opt.RequirePodCIDRs || s.knows(func(n *model.Node) bool { return len(n.PodCIDRs) > 0 })
			restSynced := s.serviceCIDRs.isSynced() && s.plugins.isSynced() && s.policies.isSynced() && s.clusterPolicies.isSynced() &&
				s.tcpRoutes.isSynced() && s.udpRoutes.isSynced() && (!s.nodesWanted() || s.otherNodes.isSynced()) &&
				s.knows(func(n *model.Node) bool { return len(n.Addresses) > 0 }) &&
				(!s.opt.WaitForPods || s.PodStats().Services[model.PodsPending] == 0 && !s.labelsPending())
			if hasPodCIDRs && (restSynced || !waitForRest) {
				return nil
			}
			if logWaiting {
				logWaiting = false
				s.opt.Log.Info("Services and EndpointSlices synced; waiting for the Node, ServiceCIDRs and Nodes that policies need",
					"timeout", nodeWait)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wakeup:
		case <-demanded.pods.due:
			demanded.pods.resume()
		case <-demanded.namespaces.due:
			demanded.namespaces.resume()
		case <-nodeDeadline:
			waitForRest = false
			nodeDeadline = make(chan time.Time) // never fires again
			s.warnMissing()
		case <-podCIDRsDeadline:
			return fmt.Errorf("Node %s: no spec.podCIDRs after %s, but detectLocalMode NodeCIDR needs them: "+
				"does the controller manager run with --allocate-node-cidrs?", s.opt.Node, podCIDRsWait)
		}
	}
}

// knows reports whether the Node has something, or had it when it was last known.
func (s *Source) knows(has func(*model.Node) bool) bool {
	node, last := s.publishedNode(), s.rememberedNode()
	return node != nil && has(node) || last != nil && has(last)
}

// warnMissing logs what has not arrived within nodeWait.
func (s *Source) warnMissing() {
	node := s.publishedNode()
	switch {
	case node == nil && s.rememberedNode() != nil: // the planner reports it
	case node == nil:
		s.opt.Log.Warn("Node not found; until it is created, NodePorts are refused and hints for zones are ignored", "node", s.opt.Node, "waited", nodeWait)
	case !s.knows(func(n *model.Node) bool { return len(n.Addresses) > 0 }):
		s.opt.Log.Warn("Node has no status.addresses yet; until it has, NodePorts are refused", "node", s.opt.Node, "waited", nodeWait)
	}
	if s.opt.RequirePodCIDRs && !s.knows(func(n *model.Node) bool { return len(n.PodCIDRs) > 0 }) {
		s.opt.Log.Warn("Node has no spec.podCIDRs yet; still waiting, detectLocalMode NodeCIDR needs them",
			"node", s.opt.Node, "waited", nodeWait, "timeout", podCIDRsWait)
	}
	if !s.serviceCIDRs.isSynced() {
		s.opt.Log.Warn("ServiceCIDRs not synced yet; connections to unallocated cluster IPs are not dropped until they are", "waited", nodeWait)
	}
	if !s.plugins.isSynced() || !s.policies.isSynced() || !s.clusterPolicies.isSynced() {
		s.opt.Log.Warn("policies of sluice.dev not synced yet; those of the configuration file decide until they are", "waited", nodeWait)
	}
	if !s.tcpRoutes.isSynced() || !s.udpRoutes.isSynced() {
		s.opt.Log.Warn("routes not synced yet; connections to Services are not split until they are", "waited", nodeWait)
	}
	if s.nodesWanted() && !s.otherNodes.isSynced() {
		s.opt.Log.Warn("other Nodes not synced yet; policies that need them are not evaluated until they are", "waited", nodeWait)
	}
}

// emitInitialState emits everything that was read so far: first the objects of sluice.dev, which others may have to act on before
// it is planned, and then the rest as one batch.
func (s *Source) emitInitialState() {
	isObject := func(c model.Change) bool { return c.Kind == model.ObjectKind }
	s.mu.Lock()
	objects := slices.Collect(func(yield func(model.Change) bool) {
		for _, c := range s.pending {
			if isObject(c) && !yield(c) {
				return
			}
		}
	})
	s.pending = slices.DeleteFunc(s.pending, isObject)
	s.mu.Unlock()
	if len(objects) > 0 {
		s.emit(objects) // without the lock: meanwhile needs may be set, and other changes wait
	}
	s.opt.Log.Info("initial sync complete", "server", s.opt.Client.Server(), "services", s.services.count(), "endpointslices", s.slices.count())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit(append(s.pending, model.Change{Kind: model.Synced}))
	s.pending, s.started = nil, true
}
