package planner

import (
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// world is what all parts of a Planner work on: the input, what has been decided about it, and the plan.
type world struct {
	roster
	settings    Settings
	cluster     *model.Snapshot
	routes      routes // of the cluster
	evaluator   *policy.Evaluator
	claims      *claims.Table
	counters    tally.Counters
	newWarnings []string    // that no Result has reported
	warnedOf    ExternalIPs // plus 1: for which a Result has a warning
}

// Synced reports whether the initial cluster state is complete. Until it is, Plan does nothing.
func (w *world) Synced() bool { return w.cluster.Synced }

// Current returns the plan as of the last Plan. It is read-only, and the next Plan changes it in place.
func (w *world) Current() *plan.Plan { return w.claims.Plan() }

// Conflicts returns the frontends that a Service wants and another one has, sorted.
func (w *world) Conflicts() []plan.Degradation { return w.claims.Conflicts() }

// PluginCalls returns the number of plugin calls that have been answered so far.
func (w *world) PluginCalls() uint64 { return w.evaluator.PluginCalls() }

// UseSignals makes requests to plugins contain what s knows of connections.
func (w *world) UseSignals(s policy.Signals) { w.evaluator.Signals = s }

// Save returns the state that must survive a restart, for Restore. epoch is that of the clock of Plan.
func (w *world) Save(epoch policy.Epoch) ([]byte, error) { return w.evaluator.Save(epoch) }

// OmittedStates returns how many states of endpoints the last Save had no room for: they begin anew after a restart.
func (w *world) OmittedStates() int { return w.evaluator.OmittedStates }

// Restore restores what Save returned; call it before the first Plan. The clock of Plan must have the epoch that it returns, see
// policy.Evaluator.Restore. After an error nothing is restored, and every endpoint counts as first seen at the first Plan.
func (w *world) Restore(text []byte, fresh policy.Epoch) (epoch policy.Epoch, sameBoot bool, err error) {
	return w.evaluator.Restore(text, fresh)
}

// Awaited returns the number of decisions that wait for a plugin. It looks at all of them.
func (w *world) Awaited() int { return w.evaluator.Awaited() }

// ServiceOf returns the Service that a change of a Service, its EndpointSlices or its Pods' state concerns, zero for other
// changes.
func (w *world) ServiceOf(c *model.Change) model.Name {
	switch {
	case c.Kind == model.SliceKind && c.Slice != nil:
		return c.Slice.Service
	case c.Kind == model.SliceKind:
		if old := w.cluster.Slice(c.Name); old != nil {
			return old.Service
		}
	case c.Kind == model.ServiceKind || c.Kind == model.PodsReadKind:
		return c.Name
	}
	return model.Name{}
}
