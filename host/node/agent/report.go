package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// progress observes what the engine does, for the state socket.
type progress struct {
	engine.Observers // none: the other methods do nothing

	mu       sync.Mutex
	totals   tally.Totals // its slices are never modified
	degraded int
	backlog  int       // Services that are still to be planned
	synced   time.Time // the first time; zero: not yet
	kernel   api.KernelState
	repairs  api.Repairs
}

// OnPlan implements engine.Observer.
func (p *progress) OnPlan(s *engine.PlannedStep) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.totals, p.degraded, p.backlog = s.Result.Totals, s.Degraded, s.Result.Remaining
}

// OnApply implements engine.Observer.
func (p *progress) OnApply(r *engine.ApplyResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := &p.kernel
	k.InSync, k.Unprogrammed = r.Synced, r.Unprogrammed
	if !r.Attempted {
		return
	}
	if r.Err == nil {
		k.Error, k.Since = "", nil
	} else {
		if at := r.At.UTC(); k.Error == "" {
			k.Since = &at
		}
		k.Error = r.Err.Error()
	}
	if r.Synced {
		at := r.At.UTC()
		k.LastSync = &at
		if p.synced.IsZero() {
			p.synced = at
		}
	}
}

// OnEvent implements engine.Observer.
func (p *progress) OnEvent(e engine.Event) {
	if e.Kind != engine.DriftDetected {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repairs = api.Repairs{Changes: p.repairs.Changes + e.Count, Last: e.At.UTC(), Objects: e.Objects, Processes: e.Processes}
}

// askTimeout bounds how long a status waits for the engine: it also has to come while the engine is busy.
const askTimeout = time.Second

// report returns the state of the agent, for the state socket.
func (a *Agent) report(ctx context.Context) *api.Status {
	cfg, node, p, now := a.config(), a.nodeState(), a.progress, time.Now().UTC()
	s := &api.Status{
		Version: a.opts.Version, Mode: cfg.Mode, Node: cfg.HostnameOverride, Source: a.source.name, At: now, Started: a.started.UTC(),
		Configuration: node.Configuration, Plugins: node.Plugins, Policies: node.Policies,
	}
	p.mu.Lock()
	totals := p.totals
	s.Kernel, s.Plan = p.kernel, planSize(&totals)
	s.Kernel.Approximated = p.degraded
	if at := p.synced; !at.IsZero() {
		s.Synced = &at
		s.Kernel.Frontends = max(0, s.Plan.Frontends-s.Kernel.Unprogrammed)
	}
	if r := p.repairs; r.Changes > 0 {
		s.Repairs = &r
	}
	p.mu.Unlock()
	a.inForce.mu.Lock()
	loaded := a.inForce.succeeded.UTC()
	a.inForce.mu.Unlock()
	s.Configuration.Loaded = &loaded
	s.API, s.Recording = a.apiContact(), a.recordingState()
	if a.opts.Logs != nil {
		s.LogLevel = strings.ToLower(a.opts.Logs.level.Level().String())
	}
	s.Objects = objectStates(a.nodeReport(ctx))
	a.assessServices(ctx, s, &totals)
	if l := a.localhost.Stats(); l.Failing > 0 {
		text := fmt.Sprintf("%d listeners on loopback for NodePorts cannot be opened", l.Failing)
		if first := a.localhost.FirstFailure(); first != "" {
			text += ": " + first
		}
		s.AddDegraded(text, "ss -ltnp")
	}
	if o := a.offload.last.Load(); o != nil && o.Reason != "" {
		s.AddDegraded(fmt.Sprintf("trafficHint: connections to %d frontends are not offloaded: %s", o.Frontends, o.Reason), "nft list ruleset")
	}
	s.Assess()
	return s
}

func planSize(t *tally.Totals) api.PlanSize {
	out := api.PlanSize{Services: t.Services}
	for i := range t.Family {
		f := &t.Family[i]
		for _, n := range f.Frontends {
			out.Frontends += n
		}
		out.Endpoints += f.Endpoints[plan.Active]
		out.Draining += f.Endpoints[plan.Draining]
	}
	return out
}

// apiContact returns the state of the watches; nil: there is no API server.
func (a *Agent) apiContact() *api.API {
	if a.source.kube == nil {
		return nil
	}
	out := &api.API{Server: a.source.name}
	for _, w := range a.source.kube.WatchStatuses() {
		if w.StaleFor > 0 {
			out.Stale = append(out.Stale, api.StaleResource{Resource: w.Resource, Seconds: w.StaleFor.Seconds(), Reason: w.Reason})
		}
	}
	return out
}

// assessServices adds the problems of Services, policies and plugins.
func (a *Agent) assessServices(ctx context.Context, s *api.Status, t *tally.Totals) {
	var names []model.Name
	omitted := 0
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// If the engine is busy for longer, the zone is unknown and the Services are not named.
	if err := a.engine.Do(ctx, func(p *planner.Planner) {
		s.Zone = p.Zone()
		names, _ = p.Failing(1)
		omitted = p.OmittedStates()
		for _, w := range p.NodeWarnings() {
			s.AddDegraded(w, "kubectl get node "+s.Node)
		}
	}); err != nil && s.Synced != nil {
		s.AddDegraded("the engine has been busy for "+askTimeout.String(), "sluice status, again")
	}
	if t.Failing > 0 {
		text, example := fmt.Sprintf("the policies of %d Services fail", t.Failing), "NAMESPACE SERVICE"
		if len(names) > 0 {
			text += ", such as " + names[0].String()
			example = names[0].Namespace + " " + names[0].Name
		}
		s.AddFailing(text, "sluice explain -n "+example)
	}
	for _, p := range a.pluginStats() {
		switch next := "the log, for plugin " + p.Plugin; {
		case p.Suspended.Modules > 0:
			s.AddFailing("plugin "+p.Plugin+" is suspended, after failures with several settings or different answers to the same request", next)
		case p.Suspended.Settings+p.Suspended.Namespaces > 0:
			s.AddFailing("plugin "+p.Plugin+" is suspended for the settings with which several Services have failed", next)
		}
	}
	if problems := a.objectProblems(); len(problems) > 0 {
		s.AddFailing(fmt.Sprintf("%d objects of sluice.dev are not in force, such as %v", len(problems), problems[0]), "the log, for objects of sluice.dev")
	}
	for _, c := range []struct {
		n          int
		text, next string
	}{
		{t.Choices[tally.ChoiceNotFound], "%d Services choose a policy that does not exist", "sluice explain -A, and Events with reason PolicyNotFound"},
		{t.Choices[tally.ChoiceNotAllowed], "%d Services choose a policy that their namespace may not", "sluice explain -A, and Events with reason PolicyNotAllowed"},
		{t.RefusedSettings, "the settings of %d Services are refused", "sluice explain -A, and Events with reason ServiceSettingsRefused"},
	} {
		if c.n > 0 {
			s.AddFailing(fmt.Sprintf(c.text, c.n), c.next)
		}
	}
	for _, c := range []struct {
		n          int
		text, next string
	}{
		{t.Conflicts, "%d frontends are not served: another Service has them, or their address is another host's", "Events with reason FrontendConflict"},
		{t.Limited, "limits leave out something of %d Services", "Events with reason ServiceLimited"},
		{t.HintsIgnored[eligibility.HintsNodeWithoutZone], "this node has no zone: topology hints of %d Services are not followed", "the label topology.kubernetes.io/zone of the Node"},
		{omitted, "%d states of endpoints that plugins keep are beyond what a checkpoint saves; after a restart they begin anew", "the metric sluice_checkpoint_omitted_endpoint_states"},
		{t.Holding, "the policies of %d Services hold endpoints that are not ready (panic)", "Events with reason PanicHold"},
	} {
		if c.n > 0 {
			s.AddDegraded(fmt.Sprintf(c.text, c.n), c.next)
		}
	}
	if r := s.Recording; r != nil && r.Error != "" {
		s.AddDegraded("the recording to "+r.File+" has ended: "+r.Error, "a restart begins another one")
	}
	for _, g := range t.Guards {
		switch {
		case g.Phase == policy.GuardFallenBack:
			s.AddDegraded("the guard of policy "+g.Policy+" has fallen back", "sluice explain of a Service with the policy")
		case g.Blind:
			s.AddDegraded("the guard of policy "+g.Policy+" is blind: nothing is known of connections", "the metric sluice_signal_last_success_timestamp_seconds")
		}
	}
}

// openConnections adds the open connections to the endpoints that are in count. IPVS counts them; otherwise conntrack has them.
func (a *Agent) openConnections(ctx context.Context, count map[model.EndpointKey]uint32) error {
	if a.opts.Modes.Get(a.config().Mode).Stats == nil {
		return conntrack.Table{}.CountConnections(ctx, count)
	}
	stats, err := a.opts.Modes.Stats(ctx, math.MaxInt)
	if err != nil {
		return err
	}
	for i := range stats {
		for _, d := range stats[i].Destinations {
			k := model.EndpointKey{Addr: d.Addr, Protocol: stats[i].Frontend.Protocol}
			n, ok := count[k]
			if !ok {
				continue
			}
			open := d.Active
			if k.Protocol == model.UDP {
				open = d.Inactive // IPVS counts flows of UDP as inactive
			}
			count[k] = n + uint32(max(0, open))
		}
	}
	return nil
}

// setLogLevel sets the level of the log, for the state socket.
func (a *Agent) setLogLevel(level slog.Level) error {
	if a.opts.Logs == nil {
		return errors.New("the level of this log cannot be set")
	}
	a.log.Info("log level set over the state socket", "level", level)
	a.opts.Logs.SetLevel(level)
	return nil
}

// logTail returns the last lines of the log, for the state socket.
func (a *Agent) logTail() []byte {
	if a.opts.Logs == nil {
		return nil
	}
	return a.opts.Logs.Tail()
}
