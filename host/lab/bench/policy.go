package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// revisedPlugins are plugins, which all get another revision with revise: all are then asked again.
type revisedPlugins struct {
	list     map[string]policy.Plugin
	loaded   []*wasm.Plugin
	revision int
	failed   sync.Once
	unload   []func()
}

type revisedPlugin struct {
	*wasm.Plugin
	revision string
	failed   *sync.Once
}

func (p revisedPlugin) Revision() string { return p.revision }

// Decide implements policy.Plugin. An error is shown: it would make figures meaningless.
func (p revisedPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	err := p.Plugin.Decide(req, resp)
	p.show(err)
	return err
}

// DecideAll implements policy.Batcher.
func (p revisedPlugin) DecideAll(calls []*policy.Call) {
	p.Plugin.DecideAll(calls)
	for _, c := range calls {
		p.show(c.Err)
	}
}

func (p revisedPlugin) show(err error) {
	if err != nil && !errors.Is(err, policy.ErrUnasked) {
		p.failed.Do(func() { fmt.Fprintln(os.Stderr, "bench: a plugin has failed:", err) })
	}
}

func (m modules) loadAll(ctx context.Context, names []string) (*revisedPlugins, error) {
	l := &revisedPlugins{list: map[string]policy.Plugin{}}
	for _, name := range names {
		p, done, err := m.load(ctx, name)
		if err != nil {
			l.close()
			return nil, err
		}
		l.list[name], l.loaded, l.unload = p, append(l.loaded, p), append(l.unload, done)
	}
	l.revise()
	return l, nil
}

func (l *revisedPlugins) get(name string) (policy.Plugin, error) { return l.list[name], nil }

// revise is called in the engine's loop, or before it runs.
func (l *revisedPlugins) revise() {
	l.revision++
	for name, p := range l.list {
		switch p := p.(type) {
		case revisedPlugin:
			l.list[name] = revisedPlugin{p.Plugin, fmt.Sprint(l.revision), &l.failed}
		case *wasm.Plugin:
			l.list[name] = revisedPlugin{p, fmt.Sprint(l.revision), &l.failed}
		}
	}
}

// processCPU returns the CPU seconds of all processes of plugins.
func (l *revisedPlugins) processCPU() (sum float64) {
	for _, p := range l.loaded {
		sum += p.ProcessCPU().Seconds()
	}
	return sum
}

func (l *revisedPlugins) close() {
	for _, unload := range l.unload {
		unload()
	}
}

// policyRun has the cost of planning a cluster with a policy on every Service, without a kernel.
type policyRun struct {
	size             size
	without, with    float64 // seconds of a full plan: without policy, and with one call per Service
	unchanged        float64 // seconds of a full replan without changes
	changed          float64 // milliseconds to plan an updated slice
	calls, callsMore uint64
}

func policyCost(ctx context.Context, m modules, s size) (*policyRun, error) {
	p, done, err := m.load(ctx, "locality")
	if err != nil {
		return nil, err
	}
	defer done()
	plugins := func(string) (policy.Plugin, error) { return p, nil }
	w := newClusterState(s)
	all := w.all()
	timeIt := func(f func()) float64 {
		start := time.Now()
		f()
		return time.Since(start).Seconds()
	}
	now := time.Unix(1_700_000_000, 0)
	r := &policyRun{size: s}
	bare := planner.New(planner.Settings{Node: nodeName(0)}, plugins)
	r.without = timeIt(func() { bare.Apply(all); bare.Plan(now) })

	zoned := &policy.Policy{Name: "zoned", Steps: []policy.Step{{Plugin: "locality"}}}
	pl := planner.New(planner.Settings{Node: nodeName(0), Policies: &policy.Set{
		Policies: map[string]*policy.Policy{"zoned": zoned}, Default: "zoned",
	}}, plugins)
	var step planner.Result
	r.with = timeIt(func() { pl.Apply(all); step = pl.PlanNow(now) })
	if len(step.Errors) > 0 {
		return nil, step.Errors[0]
	}
	r.calls = pl.PluginCalls()
	r.unchanged = timeIt(func() { pl.PluginsReloaded(); pl.PlanNow(now) })
	r.callsMore = pl.PluginCalls() - r.calls
	const changes = 200
	var one []model.Change
	for n := range changes {
		one = append(one, w.change(n, replaced))
	}
	r.changed = timeIt(func() {
		for _, c := range one {
			pl.Apply([]model.Change{c})
			pl.PlanNow(now)
		}
	}) * 1000 / changes
	return r, nil
}

func (r *policyRun) print(w io.Writer) {
	fmt.Fprintf(w, `
**Policy evaluation**, %s (Services × endpoints), %s on every Service, no kernel

| | |
|---|---|
| full plan, no policy | %.0f ms |
| full plan, with the policy (%d plugin calls) | %.0f ms |
| full replan, nothing changed (%d plugin calls) | %.0f ms |
| one slice updated | %.3f ms |
`, r.size, "`locality`", r.without*1000, r.calls, r.with*1000, r.callsMore, r.unchanged*1000, r.changed)
}

// alternating is a plugin: every other endpoint gets a share, 999 or 1 in turn, beginning with the first or the second.
type alternating struct{ first int }

func (p alternating) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		if resp.Results[i].Value = 0; (i+p.first)%2 == 0 {
			resp.Results[i].Value = [2]uint32{999, 1}[i/2%2]
		}
	}
	return nil
}

func (alternating) Needs(string) uint32  { return 0 }
func (alternating) Keys(string) []string { return nil }
func (alternating) Counters() []string   { return nil }
func (alternating) Role() abi.Role       { return abi.RoleShare }
func (alternating) Revision() string     { return "1" }

// alternatingBindings bind alternating to Services with the label alternate: even, or odd.
func alternatingBindings(plugins *revisedPlugins, policies *policy.Set) {
	for first, name := range []string{"even", "odd"} {
		plugins.list[name] = alternating{first}
		policies.Policies[name] = &policy.Policy{Name: name, Steps: []policy.Step{{Plugin: name}}}
		policies.Bindings = append(policies.Bindings, policy.Binding{
			Selector: policy.Selector{{Key: "alternate", Op: policy.In, Values: []string{name}}}, Policy: name,
		})
	}
}

// alternate returns a Service with weights by alternating.
func alternate(i int, name string) model.Change {
	c := service(i)
	c.Service.Labels["alternate"] = name
	return c
}
