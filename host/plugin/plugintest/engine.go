// Package plugintest decides for the scenarios of plugins (sdk/scenario/scenariotest) as a node does: with the planner, the
// Service rules and any policy.Plugin. It is pure.
package plugintest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// Loader returns a plugin that accepts settings, "" for none, with new instances. It is called at the beginning, when the
// settings change, and after a restart; the plugin of that name before is not used any more. name is that of a plugin of the
// chain, "" without a chain.
type Loader func(name, settings string) (policy.Plugin, error)

// defaultName is that of the policy, and of its plugin without a chain.
const defaultName = "plugin"

// engine implements scenariotest.Engine.
type engine struct {
	*outcomes.Tracker
	load    Loader
	plugins map[string]*counted // loaded, by name in the policy
	planner *planner.Planner
	cluster *scenariotest.Cluster // of the last Plan
	saved   []byte                // checkpoint; nil: none
	calls   map[uint8]int
	policy  policyOptions
}

// policyOptions are what a change of the policy depends on.
type policyOptions struct {
	ignoreHints, useDefault bool
	steps                   []policy.Step
}

func (p policyOptions) equal(o policyOptions) bool {
	return p.ignoreHints == o.ignoreHints && p.useDefault == o.useDefault && slices.EqualFunc(p.steps, o.steps, sameStep)
}

func sameStep(a, b policy.Step) bool { return a.Plugin == b.Plugin && a.Settings == b.Settings }

// New returns an engine.
func New(load Loader) scenariotest.Engine {
	return &engine{load: load, Tracker: outcomes.NewTracker(), calls: map[uint8]int{}}
}

// epoch is that of a clock that a restart does not change.
var epoch = policy.Epoch{Boot: "scenario"}

// Plan implements scenariotest.Engine.
func (e *engine) Plan(c *scenariotest.Cluster, now time.Time) (wake time.Time, err error) {
	e.cluster = c
	if err := e.configure(c); err != nil {
		return wake, err
	}
	e.planner.Replace(snapshot(c))
	r := e.planner.PlanNow(now)
	return r.RequeueAt, nil
}

// configure loads the plugin, and makes planner and policy those of the cluster.
func (e *engine) configure(c *scenariotest.Cluster) error {
	want := policyOptions{ignoreHints: c.IgnoreHints, useDefault: c.UseDefault, steps: []policy.Step{{Plugin: defaultName, Settings: c.Settings}}}
	if len(c.Chain) > 0 {
		want.steps = nil
	}
	for _, p := range c.Chain {
		want.steps = append(want.steps, policy.Step{Plugin: p.Name, Settings: p.Settings})
	}
	if e.plugins != nil && e.policy.equal(want) {
		return nil
	}
	loaded := map[string]*counted{}
	for _, step := range want.steps {
		if loaded[step.Plugin] = e.plugins[step.Plugin]; loaded[step.Plugin] != nil && slices.ContainsFunc(e.policy.steps, func(s policy.Step) bool { return sameStep(s, step) }) {
			continue
		}
		name := step.Plugin
		if len(c.Chain) == 0 {
			name = ""
		}
		plugin, err := e.load(name, step.Settings)
		if err != nil {
			return err
		}
		loaded[step.Plugin] = &counted{Plugin: plugin, calls: e.calls, requeueAt: map[uint8]int64{}}
	}
	e.plugins, e.policy = loaded, want
	p := &policy.Policy{Name: defaultName, Steps: want.steps, IgnoreHints: c.IgnoreHints, MaxShedPercentPerSecond: 100}
	if c.UseDefault {
		p.OnFailure = policy.Default
	}
	settings := planner.Settings{
		Node: c.Nodes[0].Name, OutcomeNeeds: abi.NeedOutcomes,
		Policies: &policy.Set{Policies: map[string]*policy.Policy{defaultName: p}, Default: defaultName},
	}
	if e.planner != nil {
		e.planner.Configure(settings)
		return nil
	}
	e.planner = planner.New(settings, func(name string) (policy.Plugin, error) {
		if p := e.plugins[name]; p != nil {
			return p, nil
		}
		return nil, fmt.Errorf("no plugin %s in the chain", name)
	})
	e.planner.UseSignals(e)
	if e.saved != nil {
		if _, _, err := e.planner.Restore(e.saved, epoch); err != nil {
			return err
		}
	}
	return nil
}

// Read implements scenariotest.Engine.
func (e *engine) Read(c *scenariotest.Cluster, now time.Time) {
	changes := e.Tracker.Update(now, func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for i := range c.Endpoints {
			if ep := &c.Endpoints[i]; !yield(model.EndpointKey{Addr: ep.Addr, Protocol: model.Protocol(c.Service.Protocol)}, outcomes.Counters(ep.Counters)) {
				return
			}
		}
	})
	if _, at, window := e.Tracker.Last(); e.planner != nil {
		e.planner.AddOutcomes(at, window, changes)
	}
}

// Restart implements scenariotest.Engine.
func (e *engine) Restart(time.Time) (err error) {
	e.saved, err = e.planner.Save(epoch)
	e.plugins, e.planner, e.Tracker = nil, nil, outcomes.NewTracker()
	return err
}

// Decision implements scenariotest.Engine.
func (e *engine) Decision(c *scenariotest.Cluster, pool uint8) (out scenariotest.Decision, err error) {
	x, err := e.planner.Explain(serviceName(c))
	if err != nil {
		return out, err
	}
	d, port, used := x.Decisions[0].Cluster, x.Decisions[0].Port, x.Decisions[0].Port.UsesCluster
	if pool == abi.PoolLocal {
		d, used = x.Decisions[0].Local, port.UsesLocal
	}
	if !used {
		return out, fmt.Errorf("this pool is not used: the traffic policies of the Service decide which ones are")
	}
	out = scenariotest.Decision{Endpoints: make([]scenariotest.Share, len(c.Endpoints)), Balance: d.Balance, Calls: e.calls[pool], Err: d.Err}
	out.Origin = map[policy.Origin]scenariotest.Origin{
		policy.FromChain: scenariotest.FromPlugin, policy.FromLastGood: scenariotest.FromLastGood, policy.FromDefault: scenariotest.FromDefault,
	}[d.Origin]
	for _, p := range e.plugins {
		if at := time.UnixMilli(p.requeueAt[pool]); p.requeueAt[pool] != 0 && d.Origin == policy.FromChain && (out.Requeue.IsZero() || at.Before(out.Requeue)) {
			out.Requeue = at
		}
	}
	rows := map[netip.AddrPort]int{}
	for i := range port.Endpoints {
		rows[port.Endpoints[i].Addr] = i
	}
	for i := range c.Endpoints {
		row, ok := rows[c.Endpoints[i].Addr]
		if !ok {
			return out, fmt.Errorf("endpoint %s is missing in the decision", c.Endpoints[i].Name)
		}
		share := scenariotest.Share{Weight: d.Weights[row], Draining: d.KeepDraining != nil && d.KeepDraining[row]}
		if d.ResetAt != nil && d.ResetAt[row] != 0 {
			share.ResetAt = time.UnixMilli(d.ResetAt[row])
		}
		if d.Sheds != nil {
			share.ShedPermille = d.Sheds[row].Permille
		}
		if d.Origin == policy.FromChain {
			share.Reason = reason(d.Steps, row, len(c.Chain) > 0)
		}
		out.Endpoints[i] = share
	}
	return out, nil
}

// reason returns what the plugins say about an endpoint, in a chain with their names.
func reason(steps []policy.StepResult, row int, named bool) string {
	var all []string
	for i := range steps {
		text := steps[i].Reasons.At(row)
		if text != "" && named {
			text = steps[i].Plugin + ": " + text
		}
		if text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// counted records what the plugin was asked.
type counted struct {
	policy.Plugin
	calls     map[uint8]int
	requeueAt map[uint8]int64 // Unix milliseconds; 0: none
}

// Decide implements policy.Plugin.
func (p *counted) Decide(req *abi.Request, resp *abi.Response) error {
	p.calls[req.Pool]++
	p.requeueAt[req.Pool] = 0
	err := p.Plugin.Decide(req, resp)
	if err == nil && resp.RequeueAfter > 0 {
		p.requeueAt[req.Pool] = req.Now + max(resp.RequeueAfter, time.Second).Milliseconds()
	}
	return err
}

// ConnectionsAge implements policy.Signals.
func (e *engine) ConnectionsAge(now time.Time) (time.Duration, bool) {
	return now.Sub(e.cluster.CountedAt), !e.cluster.CountedAt.IsZero()
}

// Connections implements policy.Signals.
func (e *engine) Connections(k model.EndpointKey) (uint32, bool) {
	for i := range e.cluster.Endpoints {
		if ep := &e.cluster.Endpoints[i]; ep.Addr == k.Addr {
			return ep.Connections, true
		}
	}
	return 0, false
}
