package agent

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// objectsPace is the least time between two times at which objects come into force: whoever changes them all the time has a
// bounded part of the node.
const objectsPace = 500 * time.Millisecond

// objectsWait is how long, in all, the initial state waits for the plugins of its objects: a module may take minutes to be
// compiled. Until a plugin is loaded, its policies are in force with the decisions of the checkpoint, or without any. Tests
// change it.
var objectsWait = time.Second

// objects are the policies and plugins of sluice.dev that the source has read. They are converted, and come into force, where the
// configuration does.
type objects struct {
	changed chan struct{}
	first   chan struct{} // closed when the first object has been read
	isFirst sync.Once

	converting sync.Mutex // guards convert and logged
	convert    config.Objects
	logged     map[model.ObjectName]string

	mu       sync.Mutex
	synced   bool // the initial state has ended
	read     map[model.ObjectName]any
	problems []*config.ObjectProblem
	waiting  []chan struct{} // closed when the plugins of what has been read are loaded
}

func newObjects() *objects {
	return &objects{
		logged: map[model.ObjectName]string{}, changed: make(chan struct{}, 1), first: make(chan struct{}), read: map[model.ObjectName]any{},
	}
}

// objectSource is a source whose objects of sluice.dev go to the agent; everything else goes on to the engine.
type objectSource struct {
	clusterSource
	objects *objects
	plan    func(context.Context) // brings the initial objects into force
	wait    time.Duration         // how long, in all, to wait for their plugins after that
}

// Run implements engine.Source. The initial state goes on when its objects are in force, so that no Service is first planned
// without them: a restart would lose the decisions of its checkpoint.
func (s objectSource) Run(ctx context.Context, emit func([]model.Change)) error {
	var patient context.Context // nil: nothing has waited
	cancel := func() {}
	defer func() { cancel() }()
	return s.clusterSource.Run(ctx, func(changes []model.Change) {
		rest, loaded := s.objects.take(changes)
		if loaded != nil {
			s.plan(ctx)
			if patient == nil {
				patient, cancel = context.WithTimeout(ctx, s.wait)
			}
			select {
			case <-loaded:
			case <-patient.Done():
			}
		}
		if len(rest) > 0 {
			emit(rest)
		}
	})
}

// take takes the objects from changes. Until the initial state has ended, loaded is closed when the plugins of the objects are
// loaded, or have failed; nil: there is nothing to wait for.
func (o *objects) take(changes []model.Change) (rest []model.Change, loaded <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	some, initial := false, !o.synced
	for i := range changes {
		some = some || changes[i].Kind == model.ObjectKind
		o.synced = o.synced || changes[i].Kind == model.Synced
	}
	if !some {
		return changes, nil
	}
	o.isFirst.Do(func() { close(o.first) })
	for _, c := range changes {
		name := model.ObjectName{Kind: c.Group, Name: c.Name}
		switch {
		case c.Kind != model.ObjectKind:
			rest = append(rest, c)
		case c.Object == nil:
			delete(o.read, name)
		default:
			o.read[name] = c.Object
		}
	}
	if initial {
		done := make(chan struct{})
		o.waiting, loaded = append(o.waiting, done), done
	}
	signal(o.changed)
	return rest, loaded
}

// withObjects returns a configuration with the objects as they have been read, and who waits until their plugins are loaded.
func (a *Agent) withObjects(cfg *config.Config) (out *config.Config, waiting []chan struct{}) {
	o := a.objects
	o.converting.Lock()
	defer o.converting.Unlock()
	o.mu.Lock()
	read := maps.Clone(o.read)
	waiting, o.waiting = o.waiting, nil
	o.mu.Unlock()
	out, problems := o.convert.WithObjects(cfg, read)
	o.log(a, problems)
	o.mu.Lock()
	o.problems = problems
	o.mu.Unlock()
	return out, waiting
}

// await has the next who loads plugins close waiting.
func (o *objects) await(waiting []chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, waiting...)
}

func closeAll(waiting []chan struct{}) {
	for _, c := range waiting {
		close(c)
	}
}

// maxLoggedObjects bounds the lines about objects at a time.
const maxLoggedObjects = 20

// log logs each problem once while it lasts.
func (o *objects) log(a *Agent, problems []*config.ObjectProblem) {
	now, lines, more := map[model.ObjectName]string{}, 0, 0
	for _, p := range problems {
		now[p.Object] = p.Err.Error()
		switch {
		case o.logged[p.Object] == now[p.Object]:
		case lines < maxLoggedObjects:
			lines++
			a.log.Warn("an object of sluice.dev is not in force", "kind", p.Object.Kind, "namespace", p.Object.Name.Namespace, "name", p.Object.Name.Name, "err", p.Err, "previous", p.Kept)
		default:
			more++
		}
	}
	if more > 0 {
		a.log.Warn("more objects of sluice.dev are not in force", "objects", more)
	}
	o.logged = now
}

// applyObjects brings objects that have changed into force. It reports whether the plugins have to be loaded for that, which
// reload does.
func (a *Agent) applyObjects(ctx context.Context) (reload bool) {
	current := a.config()
	next, waiting := a.withObjects(current)
	changed, only := config.ChangedPolicies(current, next)
	if len(waiting) > 0 || !only || !a.areLoaded(changed) {
		a.objects.await(waiting)
		return true
	}
	if len(changed) > 0 {
		set := next.PolicySet()
		if err := a.engine.Do(ctx, func(p *planner.Planner) { p.SetPolicies(set, changed) }); err != nil {
			return false // sluice stops
		}
	}
	a.addrs.Lock()
	a.inForce.set(next, a.inForce.reason())
	a.addrs.Unlock()
	if len(changed) == 0 {
		return false
	}
	a.setNeeds(a.source, next)
	a.log.Info("policies of sluice.dev changed", "changed", len(changed))
	return false
}

// planUnloaded has the engine plan with the objects of the initial state before their plugins are loaded.
func (a *Agent) planUnloaded(ctx context.Context) {
	a.addrs.Lock()
	defer a.addrs.Unlock()
	current := a.config()
	next, waiting := a.withObjects(current)
	a.objects.await(waiting)
	if applied, err := a.applyConfig(ctx, current, next); err == nil {
		a.inForce.set(applied, a.inForce.reason())
	}
}

// areLoaded reports whether all plugins of policies are loaded and have been checked with the settings.
func (a *Agent) areLoaded(list []*policy.Object) bool {
	for _, o := range list {
		for _, s := range o.Policy.Steps {
			name, settings := s.Plugin, s.Settings
			if o.Shadow {
				name = policy.ShadowPlugin(name)
			}
			if s.Own {
				settings = ""
			}
			if !a.plugins.IsChecked(name, settings) {
				return false
			}
		}
	}
	return true
}

// objectProblems returns what is wrong with objects.
func (a *Agent) objectProblems() []*config.ObjectProblem {
	a.objects.mu.Lock()
	defer a.objects.mu.Unlock()
	return a.objects.problems
}

// objectCounts counts what is wrong with objects, for metrics: each reason that there may be.
func objectCounts(problems []*config.ObjectProblem) map[metrics.ObjectProblem]int {
	out := map[metrics.ObjectProblem]int{}
	for _, kind := range []string{v1alpha1.ServicePluginKind, v1alpha1.ServicePolicyKind, v1alpha1.ClusterServicePolicyKind} {
		out[metrics.ObjectProblem{Kind: kind, Reason: v1alpha1.ReasonInvalid}] = 0
		if kind != v1alpha1.ServicePluginKind {
			out[metrics.ObjectProblem{Kind: kind, Reason: v1alpha1.ReasonNotAllowed}] = 0
		}
	}
	for _, p := range problems {
		out[metrics.ObjectProblem{Kind: p.Object.Kind, Reason: objectReason(p)}]++
	}
	return out
}

// objectReason returns what is wrong with an object in a word.
func objectReason(p *config.ObjectProblem) string {
	if p.NotAllowed {
		return v1alpha1.ReasonNotAllowed
	}
	return v1alpha1.ReasonInvalid
}
