package kube

import (
	"context"
	"sync"

	"github.com/sluice-proxy/sluice/host/model"
)

// nodeDemand tracks the Services whose policies need the cluster's Nodes. The other Nodes are polled while there is one.
type nodeDemand struct {
	needsNodes func(*model.Service) bool
	services   map[model.Name]bool
}

// SetNeedsNodes sets which Services have policies that need the cluster's Nodes; nil: none. It is safe for concurrent
// use.
func (s *Source) SetNeedsNodes(needs func(*model.Service) bool) {
	s.mu.Lock()
	d := &s.demand
	d.needsNodes, d.services = needs, map[model.Name]bool{}
	s.services.mu.Lock()
	for n, v := range s.services.values {
		d.observe(n, v)
	}
	s.services.mu.Unlock()
	s.mu.Unlock()
	s.wake()
}

// observe records the current value of a Service; nil: deleted.
func (d *nodeDemand) observe(n model.Name, v *model.Service) {
	if v != nil && d.needsNodes != nil && d.needsNodes(v) {
		d.services[n] = true
	} else {
		delete(d.services, n)
	}
}

// update records changes and reports whether demand began or ended.
func (d *nodeDemand) update(changes []model.Change) bool {
	before := len(d.services) > 0
	for i := range changes {
		if changes[i].Kind == model.ServiceKind {
			d.observe(changes[i].Name, changes[i].Service)
		}
	}
	return before != (len(d.services) > 0)
}

// nodesWanted reports whether a policy needs the other Nodes.
func (s *Source) nodesWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.demand.services) > 0
}

// nodePollerRunner runs a nodePoller while a policy needs the other Nodes.
type nodePollerRunner struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// reconcile starts or stops the poller as demand requires.
func (o *nodePollerRunner) reconcile() {
	s := o.source
	switch wanted := s.nodesWanted(); {
	case wanted && o.cancel == nil:
		var ctx context.Context
		ctx, o.cancel = context.WithCancel(o.ctx)
		l, unregister := s.newLister(s.opt.Client.otherNodes(s.opt.Node), s.otherNodes.setSynced)
		r := newNodePoller(s, l)
		s.setPoller(r)
		o.wg.Go(func() {
			defer unregister()
			r.run(ctx)
		})
	case !wanted && o.cancel != nil:
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
