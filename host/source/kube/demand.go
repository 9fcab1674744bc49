package kube

import (
	"context"
	"sync"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Needs are the inputs of the policy of a Service that cost the API server something: they are read only while a Service needs
// them.
type Needs struct {
	Nodes bool           // the cluster's other Nodes
	Pods  source.PodKeys // of the Service's Pods
	// Annotations of the Service itself, sorted. They cost nothing but memory, see serviceAnnotations.
	Annotations []string
	// NodeLabels are those of the Nodes of its endpoints, NamespaceLabels those of its namespace, sorted.
	NodeLabels, NamespaceLabels []string
	// Load are fields of the load that its endpoints report, sorted.
	Load []string
}

// NeedsOn returns what the policies of Services need on a node: this node's Node as it was last, nil while none is known. Of the
// Node only the labels matter.
type NeedsOn func(node *model.Node) func(*model.Service) Needs

// demand tracks what the policies of Services need.
type demand struct {
	onNode NeedsOn                    // nil: nothing
	needs  func(*model.Service) Needs // onNode of this node's Node; nil: nothing
	nodes  map[model.Name]bool        // Services that need the cluster's Nodes
	pods   podDemand

	nodeLabels, namespaceLabels, load labelDemand
}

// SetNeeds sets what the policies of Services need; nil: nothing. It is safe for concurrent use.
func (s *Source) SetNeeds(needs NeedsOn) {
	s.mu.Lock()
	s.demand.onNode = needs
	s.renewNeeds()
	s.mu.Unlock()
	s.wake()
}

// renewNeeds finds out again what Services need. s.mu is locked.
func (s *Source) renewNeeds() {
	d := &s.demand
	d.needs, d.nodes = nil, map[model.Name]bool{}
	s.annotations.needs.Store(nil)
	if d.onNode != nil {
		needs := d.onNode(s.last)
		d.needs = needs
		s.annotations.needs.Store(&needs)
	}
	s.services.mu.Lock()
	changes := s.services.narrowAll()
	for n, v := range s.services.values {
		d.observe(n, v)
	}
	s.services.mu.Unlock()
	s.send(d.pods.appendUnread(changes))
}

// observe records the current value of a Service; nil: deleted. It reports whether its demand for Pods, labels or load has
// changed.
func (d *demand) observe(n model.Name, v *model.Service) bool {
	var needs Needs
	if v != nil && d.needs != nil {
		needs = d.needs(v)
	}
	if needs.Nodes || len(needs.NodeLabels) > 0 {
		d.nodes[n] = true
	} else {
		delete(d.nodes, n)
	}
	selection := podSelection{keys: needs.Pods}
	if v != nil {
		selection.selector = v.Selector
	}
	changed := d.nodeLabels.set(n, needs.NodeLabels)
	changed = d.namespaceLabels.set(n, needs.NamespaceLabels) || changed
	changed = d.load.set(n, needs.Load) || changed
	return d.pods.set(n, selection) || changed
}

// update records changes and reports whether what is to be read has changed.
func (d *demand) update(changes []model.Change) bool {
	before, changed := len(d.nodes) > 0, false
	for i := range changes {
		if changes[i].Kind == model.ServiceKind {
			changed = d.observe(changes[i].Name, changes[i].Service) || changed
		}
	}
	return changed || before != (len(d.nodes) > 0)
}

// nodesWanted reports whether a policy needs the other Nodes.
func (s *Source) nodesWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.demand.nodes) > 0
}

// demanded are the readers of what policies need.
type demanded struct {
	nodes      *nodePollerRunner
	namespaces *valueWatch[model.Namespace]
	load       *valueWatch[model.EndpointLoad]
	pods       *podWatches
}

// reconcile brings the readers in line with demand.
func (d *demanded) reconcile() {
	d.nodes.reconcile()
	d.namespaces.reconcile()
	d.load.reconcile()
	d.pods.reconcile()
}

// nodePollerRunner runs a nodePoller while a policy needs the other Nodes.
type nodePollerRunner struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	labels *labelsToRead // of the poller that runs
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
		o.labels = r.labels
		o.labels.want(s.wantedLabels(model.NodeLabelsKind))
		s.setPoller(r)
		o.wg.Go(func() {
			defer unregister()
			r.run(ctx)
		})
	case wanted:
		o.labels.want(s.wantedLabels(model.NodeLabelsKind))
	case o.cancel != nil:
		o.stop()
		s.setPoller(nil)
		s.publish([]model.Change{{Kind: model.NodesPartialKind, Value: true}})
		s.labelsRead(model.NodeLabelsKind, nil)
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
