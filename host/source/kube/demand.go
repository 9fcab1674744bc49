package kube

import (
	"context"
	"sync"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Needs are the inputs of the policy of a Service that cost the API server something: they are read only while a Service needs them.
type Needs struct {
	Nodes bool           // the cluster's other Nodes
	Pods  source.PodKeys // of the Service's Pods
	// Annotations of the Service itself, sorted. They cost nothing but memory, see serviceAnnotations.
	Annotations []string
}

// demand tracks what the policies of Services need.
type demand struct {
	needs func(*model.Service) Needs // nil: nothing
	nodes map[model.Name]bool        // Services that need the cluster's Nodes
	pods  podDemand
}

// SetNeeds sets what the policies of Services need; nil: nothing. It is safe for concurrent use.
func (s *Source) SetNeeds(needs func(*model.Service) Needs) {
	s.mu.Lock()
	d := &s.demand
	d.needs, d.nodes = needs, map[model.Name]bool{}
	if s.annotations.needs.Store(&needs); needs == nil {
		s.annotations.needs.Store(nil)
	}
	s.services.mu.Lock()
	changes := s.services.narrowAll()
	for n, v := range s.services.values {
		d.observe(n, v)
	}
	s.services.mu.Unlock()
	s.send(d.pods.appendUnread(changes))
	s.mu.Unlock()
	s.wake()
}

// observe records the current value of a Service; nil: deleted. It reports whether its demand for Pods has changed.
func (d *demand) observe(n model.Name, v *model.Service) bool {
	var needs Needs
	if v != nil && d.needs != nil {
		needs = d.needs(v)
	}
	if needs.Nodes {
		d.nodes[n] = true
	} else {
		delete(d.nodes, n)
	}
	selection := podSelection{keys: needs.Pods}
	if v != nil {
		selection.selector = v.Selector
	}
	return d.pods.set(n, selection)
}

// update records changes and reports whether what is to be read has changed.
func (d *demand) update(changes []model.Change) bool {
	before, podsChanged := len(d.nodes) > 0, false
	for i := range changes {
		if changes[i].Kind == model.ServiceKind {
			podsChanged = d.observe(changes[i].Name, changes[i].Service) || podsChanged
		}
	}
	return podsChanged || before != (len(d.nodes) > 0)
}

// nodesWanted reports whether a policy needs the other Nodes.
func (s *Source) nodesWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.demand.nodes) > 0
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
