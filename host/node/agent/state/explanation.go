package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// localhostAddrs returns the loopback addresses on which a frontend is served.
func localhostAddrs(e *planner.Explanation, f *plan.Frontend) (out []string) {
	for _, a := range e.LocalhostAddrs {
		if f.Key.IsNodePort() && f.Key.Protocol == model.TCP && a.Is4() == f.Key.Addr.Is4() {
			out = append(out, a.String())
		}
	}
	return out
}

// NewExplanation converts the planner's explanation. wallTime converts a time of the planner, in Unix milliseconds, to wall time.
func NewExplanation(e *planner.Explanation, wallTime func(int64) time.Time) *api.Explanation {
	x := &api.Explanation{Service: e.Service.Name.String(), NodeName: e.Node, Zone: e.Zone, NodeWarnings: e.NodeWarnings, Frontends: []string{}, Pools: []api.Pool{}}
	if e.Policy != nil {
		x.Policy, x.Preset, x.Shadow = e.Policy.Name, e.Policy.Preset, newShadow(e.Policy, &e.Shadow)
		for _, s := range e.Policy.Steps {
			x.Plugins = append(x.Plugins, s.Plugin)
		}
	}
	x.Ports = newPortPolicies(e)
	x.Revision = e.Revision
	if name := e.Service.Policy; name != "" {
		x.Annotation = &api.Annotation{Policy: name}
		if e.Choice != nil {
			x.Annotation.Error = e.Choice.Error()
		}
	}
	for i := range e.NodeBindings {
		x.Nodes = append(x.Nodes, e.NodeBindings[i].String())
	}
	for i := range e.Guards {
		x.Guards = append(x.Guards, newGuard(&e.Guards[i], wallTime))
	}
	x.Settings = newSettings(&e.Settings)
	if e.Err != nil && !waits(e) {
		x.Error = e.Err.Error()
	}
	if e.Pods != nil {
		x.Pods = e.Pods.String()
	}
	for _, f := range e.Frontends {
		x.Frontends = append(x.Frontends, f.Kind.String()+" "+f.Key.String())
		if at := localhostAddrs(e, f); len(at) > 0 && len(e.Service.SourceRanges) > 0 {
			x.Degraded = append(x.Degraded, fmt.Sprintf("%s at %s: wanted loadBalancerSourceRanges, got all users of this node: source ranges do not apply to NodePorts",
				f.Key, strings.Join(at, ", ")))
		}
		for _, d := range f.Degradations() {
			x.Degraded = append(x.Degraded, fmt.Sprintf("%s: wanted %s, got %s: %s", d.Frontend, d.Wanted, d.Got, d.Why))
		}
	}
	x.Connections = connections(e.Service)
	for _, d := range e.Conflicts {
		x.Contested = append(x.Contested, d.Wanted+" "+d.Frontend.String()+": "+d.Why)
	}
	if n := e.Contested - len(e.Conflicts); n > 0 {
		x.Contested = append(x.Contested, fmt.Sprintf("%d more frontends", n))
	}
	for _, d := range e.Omitted {
		x.Omitted = append(x.Omitted, fmt.Sprintf("wanted %s, got %s: %s", d.Wanted, d.Got, d.Why))
	}
	x.Unrestricted = Unrestricted(e)
	for _, a := range e.Ignored[:min(len(e.Ignored), maxUnrestricted)] {
		x.Ignored = append(x.Ignored, a.String())
	}
	if more := len(e.Ignored) - maxUnrestricted; more > 0 {
		x.Ignored = append(x.Ignored, fmt.Sprintf("%d more", more))
	}
	for _, l := range e.Losing {
		x.LosingRoutes = append(x.LosingRoutes, fmt.Sprintf("%s %s: port %s has %s %s, which is older", l.Route.Name.Kind, l.Route.Name.Name, cmp.Or(l.Port.Port, "(unnamed)"), l.For.Name.Kind, l.For.Name.Name))
	}
	for i := range e.Decisions {
		d := &e.Decisions[i]
		var seen planner.PortSeen
		var split *planner.Split
		if i < len(e.Splits) {
			split = e.Splits[i]
		}
		if i < len(e.Seen) {
			seen = e.Seen[i]
		}
		if d.Port.UsesCluster {
			x.Pools = append(x.Pools, newPool(d.Port, &d.Cluster, abi.PoolCluster, e.PolicyOf(d.Port.Name), wallTime))
			x.Pools[len(x.Pools)-1].Inputs = newInputs(seen.Cluster, wallTime)
			addRoute(&x.Pools[len(x.Pools)-1], split, abi.PoolCluster)
		}
		if d.Port.UsesLocal {
			x.Pools = append(x.Pools, newPool(d.Port, &d.Local, abi.PoolLocal, e.PolicyOf(d.Port.Name), wallTime))
			x.Pools[len(x.Pools)-1].Inputs = newInputs(seen.Local, wallTime)
			addRoute(&x.Pools[len(x.Pools)-1], split, abi.PoolLocal)
		}
	}
	return x
}

// newPortPolicies returns what gives the ports of a Service their policies; nil if no object is among it: then there is one
// answer, which the rest of the explanation has. Ports with the same candidates share an entry.
func newPortPolicies(e *planner.Explanation) (out []api.PortPolicy) {
	objects := false
	for i := range e.Ports {
		p := &e.Ports[i]
		entry := api.PortPolicy{Ports: []string{cmp.Or(p.Port.Name, strconv.Itoa(int(p.Port.Port)))}}
		for _, c := range p.Candidates {
			objects = objects || c.Policy.FromObject
			entry.Candidates = append(entry.Candidates, api.Candidate{Layer: c.Layer, Policy: c.Policy.Name, State: c.State.String(), Why: c.Why})
		}
		if n := len(out); n > 0 && slices.Equal(out[n-1].Candidates, entry.Candidates) {
			out[n-1].Ports = append(out[n-1].Ports, entry.Ports...)
			continue
		}
		out = append(out, entry)
	}
	if !objects {
		return nil
	}
	return out
}

// maxUnrestricted bounds how many frontends Unrestricted lists, and how many external IPs Explanation.Ignored.
const maxUnrestricted = 20

// Unrestricted describes the frontends to which the source ranges of a Service do not apply.
func Unrestricted(e *planner.Explanation) (out []string) {
	list := e.Unrestricted()
	for _, f := range list[:min(len(list), maxUnrestricted)] {
		out = append(out, f.Kind.String()+" "+f.Key.String()+": "+planner.WhyUnrestricted(f))
	}
	if more := len(list) - maxUnrestricted; more > 0 {
		out = append(out, fmt.Sprintf("%d more frontends", more))
	}
	return out
}

func newGuard(g *planner.GuardStatus, wallTime func(int64) time.Time) api.Guard {
	out := api.Guard{Policy: g.Policy, State: g.State.Phase.String(), Blind: g.Blind, Baseline: api.GuardCounts(g.State.Baseline), Recent: api.GuardCounts(g.State.Recent), Text: g.String()}
	if at := wallTime(g.State.Since).UTC(); g.State.Since != 0 {
		out.Since = &at
	}
	return out
}

func newSettings(s *policy.ServiceSettings) *api.Settings {
	if s.Text == "" {
		return nil
	}
	x := &api.Settings{Annotation: s.Text}
	if s.Err != nil {
		x.Error = s.Err.Error()
	}
	if s.InForce == nil {
		return x
	}
	for step := range s.InForce.All() {
		x.InForce = append(x.InForce, api.PluginSettings{Plugin: step.Plugin, Settings: cmp.Or(step.Settings, "{}")})
	}
	return x
}

// waits reports whether the error only means that a plugin has not answered yet: the pools say which one.
func waits(e *planner.Explanation) bool {
	return errors.Is(e.Err, policy.ErrPending) && slices.ContainsFunc(e.Decisions, func(d policy.PortDecision) bool {
		return d.Cluster.Pending != nil || d.Local.Pending != nil
	})
}

func newPool(p *eligibility.Port, d *policy.Decision, pool uint8, of *policy.Policy, wallTime func(int64) time.Time) api.Pool {
	out := api.Pool{
		Port: p.Name.Port, Number: p.Spec.Port, Protocol: p.Name.Protocol.String(), Family: p.Family.String(),
		Pool: "cluster", Topology: p.Topology.String(), DecidedBy: d.Origin.String(), Balance: balances[d.Balance], Endpoints: []api.Endpoint{},
	}
	if pool == abi.PoolLocal {
		out.Pool = "local"
	}
	out.Pending, out.Shadow = newPending(d.Pending, wallTime), newPoolShadow(d.Shadow, wallTime)
	if h := d.Hold; h != nil && of != nil {
		out.Panic = &api.Panic{Panicking: h.Panicking, Ready: h.Ready, Total: h.Total, Held: h.Held, Below: of.Panic.Below, Hold: of.Panic.Hold.String(), OutcomesCounted: h.Counted}
	}
	if of != nil && of.LongLived && p.Name.Protocol != model.SCTP {
		out.TrafficHint = "LongLived"
	}
	if pool == abi.PoolCluster {
		out.HintsIgnored = p.Hints.String()
	}
	weights := totalOf(d.Weights)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		row := api.Endpoint{
			Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Eligible: e.Eligible(), Why: p.Explain(e), Weight: d.Weights[i],
		}
		if d.Sheds != nil && d.Sheds[i].Permille != 0 && of != nil {
			s := d.Sheds[i]
			row.Shed = &api.Shed{Permille: planner.EffectiveShed(s.Permille, of.MaxShedPercentPerSecond), Wanted: s.Permille}
			if at := wallTime(s.At).UTC(); s.At != 0 {
				row.Shed.Since = &at
			}
		}
		if h := d.Hold; h != nil && h.Until != nil && h.Until[i] != 0 {
			at := wallTime(h.Until[i]).UTC()
			row.Eligible, row.Why, row.HeldUntil = true, "not ready, held by the policy's panic", &at
		}
		if h := d.Hold; h != nil && h.Failing != nil && h.Failing[i] {
			row.Why += ", not held: connections from this node fail"
		}
		if pool == abi.PoolLocal && !e.Local {
			row.Eligible, row.Why = false, "not on this node"
		}
		if pool == abi.PoolCluster && e.InCluster || pool == abi.PoolLocal && e.InLocal {
			row.Default = 1
		}
		row.Steps, row.Shadow, row.Share = newSteps(d.Steps, i), newEndpointShadow(d.Shadow, i), share(row.Weight, weights)
		if d.ResetAt != nil && d.ResetAt[i] != 0 {
			at := wallTime(d.ResetAt[i]).UTC()
			row.ResetAt = &at
		}
		out.Endpoints = append(out.Endpoints, row)
	}
	out.Unheld = unheld(d.Steps, out.Endpoints)
	return out
}

// balances are the names of abi.Balance….
var balances = map[uint8]string{
	abi.BalanceRandom: "random", abi.BalanceRoundRobin: "round-robin", abi.BalanceSourceHash: "source hash", abi.BalanceLeastConnections: "least connections",
}

func newPending(p *policy.Pending, wallTime func(int64) time.Time) *api.Pending {
	if p == nil {
		return nil
	}
	return &api.Pending{Plugin: p.Plugin, Since: wallTime(p.Since).UTC()}
}

// AddThrottled adds since when the plugins that decisions wait for have used up their share of CPU time; zero: they have not.
func AddThrottled(x *api.Explanation, since func(plugin string) time.Time) {
	for i := range x.Pools {
		p := &x.Pools[i]
		addThrottled(p.Pending, since)
		if p.Shadow != nil {
			addThrottled(p.Shadow.Pending, since)
		}
	}
}

func addThrottled(p *api.Pending, since func(plugin string) time.Time) {
	if p == nil {
		return
	}
	if at := since(p.Plugin).UTC(); !at.IsZero() {
		p.ThrottledSince = &at
	}
}

// newSteps returns the decisions of plugins on endpoint i.
func newSteps(steps []policy.StepResult, i int) (out []api.Step) {
	for k := range steps {
		s := &steps[k]
		if s.Err != nil {
			continue
		}
		step, value := api.Step{Plugin: s.Plugin, Reason: s.Reasons.At(i)}, ratio(s.Answer.Values[i])
		if s.Role.Valid() {
			step.Role = s.Role.String()
		}
		switch {
		case s.Role.WritesCapacity():
			step.Capacity = &value
		case s.Role != abi.RoleReset:
			step.Share, step.Part = &value, s.Answer.PartOf(i)
		}
		out = append(out, step)
	}
	return out
}

// ratio converts millionths.
func ratio(v uint32) float64 { return float64(v) / abi.One }

// addRoute adds how a route splits a pool; nil: none does.
func addRoute(p *api.Pool, s *planner.Split, pool int) {
	if s == nil {
		return
	}
	p.DecidedBy = "route"
	p.Route = &api.Route{Kind: s.Route.Name.Kind, Name: s.Route.Name.Name.String(), Backends: []api.RouteBackend{}}
	for i := range s.Parts {
		b, part, share := &s.Route.Backends[i], &s.Parts[i], &s.Parts[i].Pools[pool]
		p.Route.Backends = append(p.Route.Backends, api.RouteBackend{
			Service: b.Service, Port: b.Port, Weight: b.Weight, Wanted: share.Wanted, Held: share.Held, Refused: share.Refused, LeftOut: share.LeftOut, Why: part.Why,
		})
	}
	d := &s.Decision.Cluster
	if pool == abi.PoolLocal {
		d = &s.Decision.Local
	}
	total := totalOf(d.Weights) + int(d.Refused)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		part, why := s.Explain(i)
		e.Backend, e.Share = s.Route.Backends[part].Service, share(e.Weight, total)
		if pool == abi.PoolCluster || s.Decision.Port.Endpoints[i].Local {
			e.Why = why
		}
	}
}

func totalOf(weights []uint16) (sum int) {
	for _, w := range weights {
		sum += int(w)
	}
	return sum
}

func share(weight uint16, total int) float64 {
	if total == 0 {
		return 0
	}
	return float64(weight) / float64(total)
}
