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

// How long the start waits for what is not needed to forward, once Services and EndpointSlices are there (SERVICES
// rule 46): for the Node and its addresses, and for its Pods' ranges where they tell which sources are Pods.
const (
	nodePatience     = 30 * time.Second
	podCIDRsPatience = 5 * time.Minute
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
	opt     Options
	server  *outage // no answer
	refused *outage // a bad one
	book    *logbook
	pace    func() *wait.Backoff
	poke    chan struct{} // something that Run waits for may have come

	services *store[model.Service]
	slices   *store[model.EndpointSlice]
	own      *store[model.Node]
	others   *store[model.Node]
	cidrs    *store[model.ServiceCIDR]

	mu      sync.Mutex
	listers []*lister // of what is followed; replaced, not changed
	wishes  wishes
	reader  *nodeReader // of the other Nodes; nil: they are not wanted
	emit    func([]model.Change)
	pending []model.Change // before the first state is complete
	open    bool
}

// New makes a source of the cluster behind a client.
func New(o Options) *Source {
	s := &Source{opt: o, pace: backoff, poke: make(chan struct{}, 1)}
	s.server = &outage{log: o.Log, now: o.Now, server: o.Client.Server(), what: "the API server does not answer; what is programmed forwards on"}
	s.refused = &outage{log: o.Log, now: o.Now, server: o.Client.Server(), what: "the API server does not give what is asked for; what is programmed forwards on"}
	s.book = newLogbook(o.Log, o.OnProblems)
	s.services = newStore(s, serviceKind())
	s.slices = newStore(s, sliceKind())
	s.own = newStore(s, nodeKind())
	s.others = newStore(s, otherNodeKind())
	s.cidrs = newStore(s, cidrKind())
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
	follow(s, &wg, ctx, c.services(), s.services)
	follow(s, &wg, ctx, c.slices(), s.slices)
	follow(s, &wg, ctx, c.node(s.opt.Node), s.own)
	follow(s, &wg, ctx, c.serviceCIDRs(), s.cidrs)
	s.put([]model.Change{{Kind: model.NodesKind, Partial: true}})
	others := &others{source: s, ctx: ctx}
	defer others.stop()
	others.update()
	if err := s.first(ctx, others); err != nil || ctx.Err() != nil {
		return err
	}
	s.begin()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.poke:
			others.update()
		}
	}
}

// first waits until the first state is complete: Services and EndpointSlices for as long as it takes (SERVICES rule
// 10), the others for a while from then on.
func (s *Source) first(ctx context.Context, others *others) error {
	var enough, last <-chan time.Time
	patient, first := true, false
	for {
		others.update()
		if s.services.isSynced() && s.slices.isSynced() {
			if enough == nil {
				enough, last = s.opt.After(nodePatience), s.opt.After(podCIDRsPatience)
				first = true
			}
			node := s.own.get(model.Name{Name: s.opt.Node})
			ranges := !s.opt.RequirePodCIDRs || node != nil && len(node.PodCIDRs) > 0
			rest := s.cidrs.isSynced() && (!s.wantsNodes() || s.others.isSynced()) && node != nil && len(node.Addresses) > 0
			if ranges && (rest || !patient) {
				return nil
			}
			if first {
				first = false
				s.opt.Log.Info("Services and EndpointSlices are read; waiting for the Node, ServiceCIDRs and what policies need",
					"at most", nodePatience)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.poke:
		case <-enough:
			patient = false
			enough = make(chan time.Time) // never again
			s.tellMissing()
		case <-last:
			return fmt.Errorf("Node %s: no spec.podCIDRs after %s, and detectLocalMode NodeCIDR needs them: "+
				"does the cluster give its Nodes ranges (--allocate-node-cidrs of the controller manager)?", s.opt.Node, podCIDRsPatience)
		}
	}
}

// tellMissing says what has not come in time.
func (s *Source) tellMissing() {
	node := s.own.get(model.Name{Name: s.opt.Node})
	switch {
	case node == nil:
		s.opt.Log.Warn("Node "+s.opt.Node+": not there: its zone and addresses are not known until it is", "waited", nodePatience)
	case len(node.Addresses) == 0:
		s.opt.Log.Warn("Node "+s.opt.Node+": status.addresses: none until now", "waited", nodePatience)
	}
	if s.opt.RequirePodCIDRs && (node == nil || len(node.PodCIDRs) == 0) {
		s.opt.Log.Warn("Node "+s.opt.Node+": spec.podCIDRs: none until now; detectLocalMode NodeCIDR needs them: still waiting",
			"waited", nodePatience, "at most", podCIDRsPatience)
	}
	if !s.cidrs.isSynced() {
		s.opt.Log.Warn("ServiceCIDRs are not known yet: addresses of no Service are not dropped until they are", "waited", nodePatience)
	}
	if s.wantsNodes() && !s.others.isSynced() {
		s.opt.Log.Warn("the other Nodes are not known yet: policies that want to know them are not asked until they are", "waited", nodePatience)
	}
}

// begin emits the first state.
func (s *Source) begin() {
	s.opt.Log.Info("the cluster is read", "server", s.opt.Client.Server(), "services", s.services.count(), "slices", s.slices.count())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit(append(s.pending, model.Change{Kind: model.Synced}))
	s.pending, s.open = nil, true
}

// put hands changes on, or keeps them until the first state is complete.
func (s *Source) put(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wishes.changed(changes) {
		s.wake()
	}
	if s.reader != nil {
		for i := range changes {
			if v := changes[i].Slice; v != nil {
				s.reader.see(v)
			}
		}
	}
	if s.open {
		s.emit(changes)
	} else {
		s.pending = append(s.pending, changes...)
	}
}

func (s *Source) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// others has the other Nodes read while they are wanted.
type others struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// update begins or ends that.
func (o *others) update() {
	s := o.source
	switch want := s.wantsNodes(); {
	case want && o.cancel == nil:
		var ctx context.Context
		ctx, o.cancel = context.WithCancel(o.ctx)
		l, unfollow := s.lister(s.opt.Client.otherNodes(s.opt.Node), s.others.setSynced)
		r := newNodeReader(s, l)
		s.setReader(r)
		o.wg.Go(func() {
			defer unfollow()
			r.run(ctx)
		})
	case !want && o.cancel != nil:
		o.stop()
		s.setReader(nil)
		s.put([]model.Change{{Kind: model.NodesKind, Partial: true}})
		s.others.forget()
	}
}

func (o *others) stop() {
	if o.cancel != nil {
		o.cancel()
		o.wg.Wait()
		o.cancel = nil
	}
}

func (s *Source) setReader(r *nodeReader) {
	s.mu.Lock()
	s.reader = r
	s.mu.Unlock()
}
