package kube

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Options configure a Source.
type Options struct {
	Client *Client
	Node   string // name of this node's Node
	// RequirePodCIDRs makes the initial sync wait for the Node's spec.podCIDRs and fail without them.
	RequirePodCIDRs bool
	// WaitForPods makes the initial sync wait for the Pods that policies need as well, at most as long as for the Node: the
	// caller programs the initial state only.
	WaitForPods bool
	Log         *slog.Logger
	Now         func() time.Time
	After       func(time.Duration) <-chan time.Time // time.After
	// OnProblems is called with the number of problems that objects have whenever it changes. It may be nil.
	OnProblems func(errors, warnings int)
}

// Source watches a cluster. It implements engine.Source; Run may be called once.
type Source struct {
	opt         Options
	unreachable *outageTracker // no response
	refused     *outageTracker // an error response
	problems    *problemTracker
	newBackoff  func() *wait.Backoff
	wakeup      chan struct{} // signals Run that something it waits for may have changed

	annotations  serviceAnnotations
	services     *store[model.Service]
	slices       *store[model.EndpointSlice]
	ownNode      *store[model.Node]
	otherNodes   *store[model.Node]
	serviceCIDRs *store[model.ServiceCIDR]

	plugins         *store[v1alpha1.ServicePlugin]
	policies        *store[v1alpha1.ServicePolicy]
	clusterPolicies *store[v1alpha1.ClusterServicePolicy]
	kindsWarned     *sync.Once // that the server does not have the kinds of sluice.dev

	tcpRoutes, udpRoutes *store[model.Route]
	routesWarned         *sync.Once // that the server does not have the Gateway API

	mu      sync.Mutex
	listers []*lister // active ones; copied on write
	demand  demand
	poller  *nodePoller // of the other Nodes; nil: no policy needs them
	emit    func([]model.Change)
	node    *model.Node    // this node's, as last published
	last    *model.Node    // the last one there was, also before a restart: what Services need depends on its labels
	before  *model.Node    // what was known before a restart; nil: nothing
	pending []model.Change // before the initial sync is complete
	started bool           // the initial state was emitted

	podsWarned sync.Once // that Pods cannot be read
	podStats   podStats
}

// New returns a source of the cluster that o.Client connects to.
func New(o Options) *Source {
	s := &Source{opt: o, newBackoff: reflectorBackoff, wakeup: make(chan struct{}, 1)}
	s.unreachable = &outageTracker{log: o.Log, now: o.Now, server: o.Client.Server(),
		message: "API server is not responding; programmed rules keep forwarding", recovered: "API server is responding again"}
	s.refused = &outageTracker{log: o.Log, now: o.Now, server: o.Client.Server(),
		message: "API server refuses requests; programmed rules keep forwarding", recovered: "API server accepts requests again"}
	s.problems = newProblemTracker(o.Log, o.OnProblems)
	s.services = newStore(s, serviceKind(&s.annotations))
	s.slices = newStore(s, sliceKind())
	s.ownNode = newStore(s, nodeKind())
	s.otherNodes = newStore(s, otherNodeKind())
	s.serviceCIDRs = newStore(s, cidrKind())
	s.plugins, s.policies, s.clusterPolicies = newStore(s, pluginKind()), newStore(s, policyKind()), newStore(s, clusterPolicyKind())
	s.tcpRoutes, s.udpRoutes = newStore(s, routeKind(model.TCPRouteKind)), newStore(s, routeKind(model.UDPRouteKind))
	s.kindsWarned, s.routesWarned = new(sync.Once), new(sync.Once)
	return s
}

// Run emits the cluster's objects, then Synced, then changes, until ctx ends. During an outage of the API server it emits
// nothing. It fails only when Options.RequirePodCIDRs is set and the Node has no spec.podCIDRs.
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
	runReflector(s, &wg, ctx, c.servicePlugins(), s.plugins)
	runReflector(s, &wg, ctx, c.servicePolicies(), s.policies)
	runReflector(s, &wg, ctx, c.clusterServicePolicies(), s.clusterPolicies)
	runReflector(s, &wg, ctx, c.routes(model.TCPRouteKind), s.tcpRoutes)
	runReflector(s, &wg, ctx, c.routes(model.UDPRouteKind), s.udpRoutes)
	s.publish([]model.Change{{Kind: model.NodesPartialKind, Value: true}, {Kind: model.PodsOnDemandKind, Value: true},
		{Kind: model.NodeLabelsKind}, {Kind: model.NamespaceLabelsKind}, {Kind: model.LoadReadKind}})
	pods := newPodWatches(s, ctx)
	defer pods.stopAll()
	demanded := &demanded{
		nodes:      &nodePollerRunner{source: s, ctx: ctx},
		namespaces: newValueWatch(s, ctx, model.NamespaceLabelsKind, c.namespaces(), namespaceKind),
		load:       newValueWatch(s, ctx, model.LoadReadKind, c.endpointLoads(), loadKind),
		pods:       pods,
	}
	defer demanded.nodes.stop()
	defer demanded.namespaces.stop()
	defer demanded.load.stop()
	if err := s.waitForInitialSync(ctx, demanded); err != nil || ctx.Err() != nil {
		return err
	}
	s.emitInitialState()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wakeup:
			demanded.reconcile()
		case <-demanded.pods.due:
			demanded.pods.resume()
		case <-demanded.namespaces.due:
			demanded.namespaces.resume()
		case <-demanded.load.due:
			demanded.load.resume()
		}
	}
}

// publish emits changes, or queues them until the initial sync is complete.
func (s *Source) publish(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.demand.update(changes) {
		changes = s.demand.pods.appendUnread(changes)
		s.wake()
	}
	relabeled := false
	for i := range changes {
		switch c := &changes[i]; {
		case c.Slice != nil && s.poller != nil:
			s.poller.observeSlice(c.Slice)
		case c.Kind == model.NodeKind && c.Name.Name == s.opt.Node:
			if s.node = c.Node; c.Node != nil {
				relabeled = relabeled || !sameLabels(s.last, c.Node)
				s.last = c.Node
			}
		}
	}
	s.send(changes)
	if relabeled {
		s.renewNeeds()
		s.wake()
	}
}

// sameLabels reports whether two Nodes have the same labels; nil is a Node that is not known.
func sameLabels(a, b *model.Node) bool {
	return (a == nil) == (b == nil) && (a == nil || maps.Equal(a.Labels, b.Labels))
}

// publishedNode returns this node's Node as last published, nil for none. The store has a Node before it is published.
func (s *Source) publishedNode() *model.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// RememberNode sets what was known of this node's Node before a restart; nil: nothing. It is safe for concurrent use.
func (s *Source) RememberNode(n *model.Node) {
	s.mu.Lock()
	if s.before = n; s.last == nil && n != nil {
		s.last = n
		s.renewNeeds()
	}
	s.mu.Unlock()
	s.wake()
}

// rememberedNode returns what was known of this node's Node before a restart, nil for nothing and until the Node has been asked
// for.
func (s *Source) rememberedNode() *model.Node {
	if !s.ownNode.isSynced() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.before
}

// send emits or queues changes. s.mu is locked.
func (s *Source) send(changes []model.Change) {
	switch {
	case len(changes) == 0:
	case s.started:
		s.emit(changes)
	default:
		s.pending = append(s.pending, changes...)
	}
}

func (s *Source) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

func (s *Source) setPoller(r *nodePoller) {
	s.mu.Lock()
	s.poller = r
	s.mu.Unlock()
}
