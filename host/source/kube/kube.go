// Package kube reads cluster state from an API server, and watches it. The model value is the only copy of an object
// that it keeps, and it is the same one that the planner's snapshot holds; only what differs is emitted.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sluice-proxy/sluice/host/model"
)

// How long the start waits for what is not needed to forward, once Services and EndpointSlices are there (host/RULES.md,
// rule 46): for the Node and its addresses, and for its Pods' ranges where they tell which sources are Pods.
const (
	nodeWait     = 30 * time.Second
	podCIDRsWait = 5 * time.Minute
)

// Options are what a Source needs of the outside.
type Options struct {
	Client *Client
	Node   string // name of this node's Node
	// RequirePodCIDRs: without the Node's spec.podCIDRs nothing may be programmed.
	RequirePodCIDRs bool
	Log             *slog.Logger
	Now             func() time.Time
	After           func(time.Duration) <-chan time.Time // time.After
	// OnProblems, when set, is told how many problems objects have, whenever that changes.
	OnProblems func(errors, warnings int)
}

// Source is a cluster. It implements engine.Source; Run may be called once.
type Source struct {
	opt         Options
	unreachable *outageTracker // no answer
	refused     *outageTracker // a bad one
	problems    *problemTracker
	newBackoff  func() *wait.Backoff
	wakeup      chan struct{} // something that Run waits for may have come

	services     *store[model.Service]
	slices       *store[model.EndpointSlice]
	ownNode      *store[model.Node]
	otherNodes   *store[model.Node]
	serviceCIDRs *store[model.ServiceCIDR]

	mu      sync.Mutex
	listers []*lister // of what is followed; replaced, not changed
	demand  nodeDemand
	poller  *nodePoller // of the other Nodes; nil: they are not wanted
	emit    func([]model.Change)
	pending []model.Change // before the first state is complete
	started bool
}

// New makes a source of the cluster behind a client.
func New(o Options) *Source {
	s := &Source{opt: o, newBackoff: reflectorBackoff, wakeup: make(chan struct{}, 1)}
	s.unreachable = &outageTracker{log: o.Log, now: o.Now, server: o.Client.Server(), message: "the API server does not answer; what is programmed forwards on"}
	s.refused = &outageTracker{log: o.Log, now: o.Now, server: o.Client.Server(), message: "the API server does not give what is asked for; what is programmed forwards on"}
	s.problems = newProblemTracker(o.Log, o.OnProblems)
	s.services = newStore(s, serviceKind())
	s.slices = newStore(s, sliceKind())
	s.ownNode = newStore(s, nodeKind())
	s.otherNodes = newStore(s, otherNodeKind())
	s.serviceCIDRs = newStore(s, cidrKind())
	return s
}

// Run emits the cluster's objects, then Synced, then what changes, until ctx ends. While the server does not answer
// nothing is emitted. It fails only when the Node must have ranges for Pods and has none.
func (s *Source) Run(ctx context.Context, emit func([]model.Change)) error {
	s.emit = emit
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		stop()
		wg.Wait()
	}()
	c := s.opt.Client
	runReflector(s, &wg, ctx, c.services(), s.services)
	runReflector(s, &wg, ctx, c.slices(), s.slices)
	runReflector(s, &wg, ctx, c.node(s.opt.Node), s.ownNode)
	runReflector(s, &wg, ctx, c.serviceCIDRs(), s.serviceCIDRs)
	s.publish([]model.Change{{Kind: model.NodesKind, Partial: true}})
	others := &nodePollerRunner{source: s, ctx: ctx}
	defer others.stop()
	others.reconcile()
	if err := s.logWaiting(ctx, others); err != nil || ctx.Err() != nil {
		return err
	}
	s.emitInitialState()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wakeup:
			others.reconcile()
		}
	}
}

// logWaiting waits until the first state is complete: Services and EndpointSlices for as long as it takes (host/RULES.md,
// rule 10), the others for a while from then on.
func (s *Source) logWaiting(ctx context.Context, others *nodePollerRunner) error {
	var nodeDeadline, podCIDRsDeadline <-chan time.Time
	waitForRest, logWaiting := true, false
	for {
		others.reconcile()
		if s.services.isSynced() && s.slices.isSynced() {
			if nodeDeadline == nil {
				nodeDeadline, podCIDRsDeadline = s.opt.After(nodeWait), s.opt.After(podCIDRsWait)
				logWaiting = true
			}
			node := s.ownNode.get(model.Name{Name: s.opt.Node})
			hasPodCIDRs := !s.opt.RequirePodCIDRs || node != nil && len(node.PodCIDRs) > 0
			restSynced := s.serviceCIDRs.isSynced() && (!s.nodesWanted() || s.otherNodes.isSynced()) && node != nil && len(node.Addresses) > 0
			if hasPodCIDRs && (restSynced || !waitForRest) {
				return nil
			}
			if logWaiting {
				logWaiting = false
				s.opt.Log.Info("Services and EndpointSlices are read; waiting for the Node, ServiceCIDRs and what policies need",
					"at most", nodeWait)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wakeup:
		case <-nodeDeadline:
			waitForRest = false
			nodeDeadline = make(chan time.Time) // never again
			s.warnMissing()
		case <-podCIDRsDeadline:
			return fmt.Errorf("Node %s: no spec.podCIDRs after %s, and detectLocalMode NodeCIDR needs them: "+
				"does the cluster give its Nodes ranges (--allocate-node-cidrs of the controller manager)?", s.opt.Node, podCIDRsWait)
		}
	}
}

// warnMissing says what has not come in time.
func (s *Source) warnMissing() {
	node := s.ownNode.get(model.Name{Name: s.opt.Node})
	switch {
	case node == nil:
		s.opt.Log.Warn("Node "+s.opt.Node+": not there: its zone and addresses are not known until it is", "waited", nodeWait)
	case len(node.Addresses) == 0:
		s.opt.Log.Warn("Node "+s.opt.Node+": status.addresses: none until now", "waited", nodeWait)
	}
	if s.opt.RequirePodCIDRs && (node == nil || len(node.PodCIDRs) == 0) {
		s.opt.Log.Warn("Node "+s.opt.Node+": spec.podCIDRs: none until now; detectLocalMode NodeCIDR needs them: still waiting",
			"waited", nodeWait, "at most", podCIDRsWait)
	}
	if !s.serviceCIDRs.isSynced() {
		s.opt.Log.Warn("ServiceCIDRs are not known yet: addresses of no Service are not dropped until they are", "waited", nodeWait)
	}
	if s.nodesWanted() && !s.otherNodes.isSynced() {
		s.opt.Log.Warn("the other Nodes are not known yet: policies that want to know them are not asked until they are", "waited", nodeWait)
	}
}

// emitInitialState emits the first state.
func (s *Source) emitInitialState() {
	s.opt.Log.Info("the cluster is read", "server", s.opt.Client.Server(), "services", s.services.count(), "slices", s.slices.count())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit(append(s.pending, model.Change{Kind: model.Synced}))
	s.pending, s.started = nil, true
}

// publish hands changes on, or keeps them until the first state is complete.
func (s *Source) publish(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.demand.update(changes) {
		s.wake()
	}
	if s.poller != nil {
		for i := range changes {
			if v := changes[i].Slice; v != nil {
				s.poller.observeSlice(v)
			}
		}
	}
	if s.started {
		s.emit(changes)
	} else {
		s.pending = append(s.pending, changes...)
	}
}

func (s *Source) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// nodePollerRunner has the other Nodes read while they are wanted.
type nodePollerRunner struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// reconcile begins or ends that.
func (o *nodePollerRunner) reconcile() {
	s := o.source
	switch want := s.nodesWanted(); {
	case want && o.cancel == nil:
		var ctx context.Context
		ctx, o.cancel = context.WithCancel(o.ctx)
		l, unregister := s.newLister(s.opt.Client.otherNodes(s.opt.Node), s.otherNodes.setSynced)
		r := newNodePoller(s, l)
		s.setPoller(r)
		o.wg.Go(func() {
			defer unregister()
			r.run(ctx)
		})
	case !want && o.cancel != nil:
		o.stop()
		s.setPoller(nil)
		s.publish([]model.Change{{Kind: model.NodesKind, Partial: true}})
		s.otherNodes.reset()
	}
}

func (o *nodePollerRunner) stop() {
	if o.cancel != nil {
		o.cancel()
		o.wg.Wait()
		o.cancel = nil
	}
}

func (s *Source) setPoller(r *nodePoller) {
	s.mu.Lock()
	s.poller = r
	s.mu.Unlock()
}
