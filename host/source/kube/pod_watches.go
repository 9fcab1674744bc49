package kube

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// podWatchInterval is the minimum time between two starts of watches for a namespace: each is a list of Pods, by every node.
const podWatchInterval = 5 * time.Second

// podWatches runs the watches of Pods that the policies of Services need. All of it belongs to the goroutine of Source.Run,
// except publish.
type podWatches struct {
	source     *Source
	ctx        context.Context
	merged     *mergedPods
	namespaces map[string]*podNamespace
	wanted     int             // watches of all namespaces
	refused    map[string]bool // namespaces beyond maxPodWatches
	delayed    map[string]bool // namespaces to reconcile again
	due        <-chan time.Time
}

// podNamespace is the watches of a namespace.
type podNamespace struct {
	specs     []podWatchSpec // wanted
	watches   []*podWatch    // running: those wanted, and obsolete ones until all of those are synced
	states    map[model.Name]model.PodsState
	notBefore time.Time // no watch is started before
}

// podWatch is a running watch.
type podWatch struct {
	podWatchSpec
	store       *store[model.Pod]
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	unavailable atomic.Bool
}

func newPodWatches(s *Source, ctx context.Context) *podWatches {
	return &podWatches{source: s, ctx: ctx, merged: &mergedPods{publish: s.publish, pods: map[model.Name]*mergedPod{}},
		namespaces: map[string]*podNamespace{}, refused: map[string]bool{}, delayed: map[string]bool{}}
}

// state returns whether the watch has read its Pods.
func (w *podWatch) state() model.PodsState {
	switch {
	case w.store.isSynced():
		return model.PodsRead
	case w.unavailable.Load():
		return model.PodsUnavailable
	}
	return model.PodsPending
}

// reconcile brings the watches of the namespaces in line whose demand, or the state of whose watches, has changed.
func (r *podWatches) reconcile() {
	s, before := r.source, r.wanted
	changed := s.takePodChanges()
	for name := range changed.unread {
		if n := r.namespaces[name.Namespace]; n != nil {
			delete(n.states, name) // it was published that they are pending
		}
	}
	for _, ns := range changed.namespaces {
		r.reconcileNamespace(ns, changed.services[ns])
	}
	if r.wanted < before && len(r.refused) > 0 {
		s.reconcilePods(r.refused)
	}
	s.podStats.set(r, changed.demanded)
}

// reconcilePods schedules namespaces.
func (s *Source) reconcilePods(namespaces map[string]bool) {
	s.mu.Lock()
	for ns := range namespaces {
		s.demand.pods.mark(ns)
	}
	s.mu.Unlock()
	s.wake()
}

// resume schedules the namespaces whose changes were delayed.
func (r *podWatches) resume() {
	delayed := r.delayed
	r.due, r.delayed = nil, map[string]bool{}
	r.source.reconcilePods(delayed)
}

// delay reconciles a namespace again when it may start watches.
func (r *podWatches) delay(ns string) {
	if r.delayed[ns] = true; r.due == nil {
		r.due = r.source.opt.After(podWatchInterval)
	}
}

func (r *podWatches) reconcileNamespace(ns string, services map[model.Name]podSelection) {
	n := r.namespaces[ns]
	if n == nil {
		n = &podNamespace{states: map[model.Name]model.PodsState{}}
		r.namespaces[ns] = n
	}
	r.want(ns, n, services)
	current, pending := r.startMissing(ns, n)
	n.stopObsolete(current, pending)
	r.publishStates(ns, n, services)
	switch {
	case len(services) > 0 || len(n.watches) > 0:
	case r.source.opt.Now().Before(n.notBefore):
		r.delay(ns) // remember notBefore: a Service that comes and goes must not restart the watch each time
	default:
		delete(r.namespaces, ns)
	}
}

// want sets the watches that a namespace needs, within maxPodWatches.
func (r *podWatches) want(ns string, n *podNamespace, services map[model.Name]podSelection) {
	others := r.wanted - len(n.specs)
	specs := podWatchSpecs(ns, services, maxSelectors)
	if others+len(specs) > maxPodWatches {
		specs = podWatchSpecs(ns, services, 0)
	}
	refused := others+len(specs) > maxPodWatches
	if refused {
		specs = nil
		if len(r.refused) == 0 {
			r.source.opt.Log.Warn("too many namespaces have Services whose policies read Pods; the values of Pods are absent in further ones",
				"namespace", ns, "limit", maxPodWatches)
		}
		r.refused[ns] = true
	} else {
		delete(r.refused, ns)
	}
	r.wanted += len(specs) - len(n.specs)
	n.specs = specs
}

// startMissing starts the watches that are wanted and not running. It returns those wanted that run, and whether one of them is
// missing or not synced.
func (r *podWatches) startMissing(ns string, n *podNamespace) (current []*podWatch, pending bool) {
	now := r.source.opt.Now()
	may := !now.Before(n.notBefore)
	for i := range n.specs {
		w := n.watchOf(&n.specs[i])
		switch {
		case w != nil:
		case may:
			w = r.start(n.specs[i])
			n.watches = append(n.watches, w)
			n.notBefore = now.Add(podWatchInterval)
		default:
			r.delay(ns)
			pending = true
			continue
		}
		current = append(current, w)
		pending = pending || w.state() == model.PodsPending
	}
	return current, pending
}

// watchOf returns the running watch that has what another one would have; nil if none has.
func (n *podNamespace) watchOf(spec *podWatchSpec) *podWatch {
	if spec == nil {
		return nil
	}
	for _, w := range n.watches {
		if w.covers(spec) {
			return w
		}
	}
	return nil
}

// stopObsolete stops the watches that are not current. While a current one is not synced, those that are synced stay: the Pods
// that they have read would be missing.
func (n *podNamespace) stopObsolete(current []*podWatch, pending bool) {
	n.watches = slices.DeleteFunc(n.watches, func(w *podWatch) bool {
		if slices.Contains(current, w) || pending && w.state() == model.PodsRead {
			return false
		}
		w.stop()
		return true
	})
}

// publishStates publishes for which Services the Pods have been read.
func (r *podWatches) publishStates(ns string, n *podNamespace, services map[model.Name]podSelection) {
	var changes []model.Change
	publish := func(name model.Name, state model.PodsState) {
		if n.states[name] == state {
			return
		}
		if state == model.PodsPending {
			delete(n.states, name)
		} else {
			n.states[name] = state
		}
		changes = append(changes, model.Change{Kind: model.PodsReadKind, Name: name, Pods: state})
	}
	for name, s := range services {
		switch spec := specOf(n.specs, &s); {
		case s.selector == "":
			publish(name, model.PodsRead) // none
		case r.refused[ns]:
			publish(name, model.PodsUnavailable)
		default:
			state := model.PodsPending
			if w := n.watchOf(spec); w != nil {
				state = w.state()
			}
			publish(name, state)
		}
	}
	for name := range n.states {
		if _, ok := services[name]; !ok {
			publish(name, model.PodsPending)
		}
	}
	slices.SortFunc(changes, func(a, b model.Change) int { return a.Name.Compare(b.Name) })
	r.source.publish(changes)
}

// start starts a watch.
func (r *podWatches) start(spec podWatchSpec) *podWatch {
	s := r.source
	w := &podWatch{podWatchSpec: spec, store: newStore(s, podKind(&spec))}
	notify := func() { s.reconcilePods(map[string]bool{spec.namespace: true}) }
	w.store.publish = func(changes []model.Change) { r.merged.update(w, changes) }
	w.store.onSynced = notify
	l, unregister := s.newLister(s.opt.Client.pods(&spec), func() {
		w.unavailable.Store(true)
		notify()
	})
	l.warned = &s.podsWarned
	s.mu.Lock()
	l.fullListed = s.started // every node starts this watch at the same moment: the list is spread like a repeated one
	s.mu.Unlock()
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(r.ctx)
	startReflector(s, &w.wg, ctx, l, unregister, w.store)
	return w
}

// stop stops a watch and removes its Pods.
func (w *podWatch) stop() {
	w.cancel()
	w.wg.Wait()
	w.store.reset()
}

// stopAll stops all watches, when the source ends: what was read stays.
func (r *podWatches) stopAll() {
	for _, n := range r.namespaces {
		for _, w := range n.watches {
			w.cancel()
		}
	}
	for _, n := range r.namespaces {
		for _, w := range n.watches {
			w.wg.Wait()
		}
	}
}
