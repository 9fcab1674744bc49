package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// Bounds of a NodeReport, those of its schema.
const (
	maxReported        = 256 // plugins, and policies
	maxReportedMessage = 256 // characters
)

// nodeReport returns what of the objects of sluice.dev the node has in force, nil while that is not known.
func (a *Agent) nodeReport(ctx context.Context) *v1alpha1.Report {
	p := a.progress
	p.mu.Lock()
	totals, settled := p.totals, p.backlog == 0 && !p.synced.IsZero()
	p.mu.Unlock()
	if !settled {
		return nil
	}
	n, registered, observed := a.config().ObjectsInForce()
	var failing []planner.PolicyError
	if totals.Failing > 0 {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if a.engine.Do(asking, func(p *planner.Planner) { failing = p.PolicyErrors() }) != nil {
			return nil
		}
	}
	problems := a.objectProblems()
	out := &v1alpha1.Report{Version: a.opts.Version, Observed: observed, PolicyCount: int32(n), Plugins: reportPlugins(registered, problems, a.plugins.Status())}
	out.Policies, out.PoliciesOmitted = reportPolicies(problems, totals.Guards, failing)
	return out
}

// objectStates returns the part of a report, which may be nil, that the state API has; nil: no policy is an object.
func objectStates(r *v1alpha1.Report) *api.Objects {
	if r == nil || r.PolicyCount == 0 && len(r.Policies) == 0 {
		return nil
	}
	out := &api.Objects{Policies: int(r.PolicyCount)}
	for i := range r.Policies {
		p := &r.Policies[i]
		kind := v1alpha1.ServicePolicyKind
		if p.Namespace == "" {
			kind = v1alpha1.ClusterServicePolicyKind
		}
		out.NotInForce = append(out.NotInForce, api.ObjectState{Kind: kind, Namespace: p.Namespace, Name: p.Name, Reason: p.Reason, Message: p.Message})
	}
	return out
}

// reportPolicies returns the policies of objects that are not in force as they should be, sorted, and how many more there are. Of
// several reasons it has the first one: the object is not valid, the guard, the plugins.
func reportPolicies(problems []*config.ObjectProblem, guards []tally.GuardTotals, failing []planner.PolicyError) (out []v1alpha1.PolicyReport, omitted int32) {
	known := map[model.Name]bool{}
	add := func(name model.Name, reason, message string) {
		if !known[name] {
			known[name] = true
			out = append(out, v1alpha1.PolicyReport{Namespace: name.Namespace, Name: name.Name, Reason: reason, Message: brief(message)})
		}
	}
	for _, p := range problems {
		if p.Object.Kind != v1alpha1.ServicePluginKind {
			add(p.Object.Name, objectReason(p), p.Err.Error())
		}
	}
	for _, g := range guards {
		if name, ok := policy.ObjectOf(g.Policy); ok && g.Phase == policy.GuardFallenBack {
			add(name, v1alpha1.ReasonFallenBack, "more connections failed than without the policy")
		} else if ok && g.Phase == policy.GuardBaseline {
			add(name, v1alpha1.ReasonPending, "the guard counts connections without the policy first")
		}
	}
	for _, f := range failing {
		if name, ok := policy.ObjectOf(f.Policy); ok {
			reason := v1alpha1.ReasonFailing
			if errors.As(f.Err, new(*wasm.SchemaError)) {
				reason = v1alpha1.ReasonInvalid
			}
			add(name, reason, f.Err.Error())
		}
	}
	omitted = int32(max(0, len(out)-maxReported))
	out = out[:len(out)-int(omitted)]
	slices.SortFunc(out, func(a, b v1alpha1.PolicyReport) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, omitted
}

// reportPlugins returns the plugins that are objects, sorted by name: those that policies use, and those that are refused, with
// the reason. Each is loaded once for policies and once for shadows.
func reportPlugins(registered []string, problems []*config.ObjectProblem, loaded []plugins.Status) []v1alpha1.PluginReport {
	all := map[string]*v1alpha1.PluginReport{}
	of := func(name string) *v1alpha1.PluginReport {
		if all[name] == nil {
			all[name] = &v1alpha1.PluginReport{Name: name}
		}
		return all[name]
	}
	for i := range loaded {
		s := &loaded[i]
		name, _ := policy.CutShadow(s.Name)
		if !slices.Contains(registered, name) {
			continue
		}
		p := of(name)
		p.Digest = cmp.Or(p.Digest, s.Digest)
		if s.Err != nil && p.Reason == "" {
			p.Reason, p.Message = plugins.Reason(s.Err), brief(s.Err.Error())
		}
	}
	for _, problem := range problems {
		if problem.Object.Kind == v1alpha1.ServicePluginKind {
			p := of(problem.Object.Name.Name)
			p.Reason, p.Message = v1alpha1.ReasonInvalid, brief(problem.Err.Error())
		}
	}
	var out []v1alpha1.PluginReport
	for _, p := range all {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b v1alpha1.PluginReport) int { // those with a reason first
		return cmp.Or(cmp.Compare(min(1, len(b.Reason)), min(1, len(a.Reason))), cmp.Compare(a.Name, b.Name))
	})
	out = out[:min(len(out), maxReported)]
	slices.SortFunc(out, func(a, b v1alpha1.PluginReport) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// brief shortens a message to what a report may have.
func brief(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if utf8.RuneCountInString(text) <= maxReportedMessage {
		return text
	}
	return string([]rune(text)[:maxReportedMessage-1]) + "…"
}
