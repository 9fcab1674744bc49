package simulation

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// worker simulates some of the Services. It is used by one goroutine.
type worker struct {
	sim    *Simulation
	runs   []*nodeRun
	totals []*runTotals
	// diverging are the connections per second that go elsewhere in the other run, by sample.
	diverging  []float64
	perNode    []map[string]bool // found by this worker, see Simulation
	kept       keptServices
	conditions verdict.Conditions
}

// runTotals is what a worker has added up in a run.
type runTotals struct {
	samples  []sampleTotals
	overload histogram // of all samples
	policies map[string]*PolicyInfo
	errors   []string
	failed   int // Services
}

// sampleTotals is what a worker has added up at a sample.
type sampleTotals struct {
	demand, failed             float64
	zoned, crossing            float64 // connections between known zones, and those of them between different ones
	zoneDemand, zoneLoad       []float64
	overload                   histogram
	empty, single              int
	weightChanges, pluginCalls uint64
}

func (s *Simulation) newWorker(plugins []Plugins) *worker {
	w := &worker{sim: s, diverging: make([]float64, s.samples), conditions: s.in.Conditions.Clone()}
	for i := range s.in.Runs {
		w.runs = append(w.runs, &nodeRun{sim: s, config: &s.in.Runs[i], evaluator: policy.NewEvaluator(plugins[i]), rules: s.rules[i]})
		t := &runTotals{samples: make([]sampleTotals, s.samples), policies: map[string]*PolicyInfo{}}
		for j := range t.samples {
			t.samples[j].zoneDemand, t.samples[j].zoneLoad = make([]float64, len(s.world.zones)), make([]float64, len(s.world.zones))
		}
		w.totals = append(w.totals, t)
		w.perNode = append(w.perNode, map[string]bool{})
	}
	return w
}

// add simulates a unit.
func (w *worker) add(names []model.Name) {
	u := w.sim.unitOf(names)
	classes := w.sim.classes(names[0], u.hosts, func(g *group) bool { return w.isPerNode(g, u) })
	runs := make([][][]trajectory, len(u.services)) // by Service, class, then run
	for k := range runs {
		runs[k] = make([][]trajectory, len(classes))
	}
	for i := range classes {
		c := &classes[i]
		for r, node := range w.runs {
			for k, tr := range node.run(u, c, r) {
				runs[k][i] = append(runs[k][i], tr)
				if c.witnessOf >= 0 && !sameDecisions(&runs[k][c.witnessOf][r], &tr) {
					w.perNode[r][tr.policy.Name] = true
					w.sim.restart.Store(true)
				}
			}
		}
	}
	if w.sim.restart.Load() {
		return
	}
	for k, svc := range u.services {
		if w.sim.in.Only == nil || w.sim.in.Only(svc.service.Name) {
			w.addTotals(svc, classes, runs[k])
		}
	}
}

// isPerNode reports whether a policy that a Service has on the nodes of a group depends on the node itself.
func (w *worker) isPerNode(g *group, u *unit) bool {
	for r := range w.runs {
		for _, svc := range u.services {
			for i := range svc.service.Ports {
				if p, _ := g.sets[r].For(svc.service, svc.service.Ports[i].Name, ""); p != nil && w.sim.perNode[r][p.Name] {
					return true
				}
			}
		}
	}
	return false
}

// sameDecisions reports whether two nodes decide the same at all times.
func sameDecisions(a, b *trajectory) bool {
	if a.policy == nil {
		return true // the default rules do
	}
	i, j := 0, 0
	for i < len(a.states) && j < len(b.states) {
		if !slices.EqualFunc(a.states[i].weights, b.states[j].weights, slices.Equal) {
			return false
		}
		switch x, y := i+1, j+1; {
		case x == len(a.states) && y == len(b.states):
			return true
		case y == len(b.states), x < len(a.states) && a.states[x].at < b.states[y].at:
			i++
		case x == len(a.states), b.states[y].at < a.states[x].at:
			j++
		default:
			i, j = x, y
		}
	}
	return true
}

// addTotals adds the load of a Service.
func (w *worker) addTotals(svc *serviceRun, classes []class, runs [][]trajectory) {
	policies := make([]map[string]int, len(w.runs)) // Nodes
	failures := make([]error, len(w.runs))
	work := make([]work, len(w.runs))
	for r := range w.runs {
		policies[r] = map[string]int{}
		for i := range classes {
			c, tr := &classes[i], &runs[i][r]
			if failures[r] == nil {
				failures[r] = tr.err
			}
			if c.members == 0 {
				continue
			}
			w.addPolicy(policies[r], c, tr, r)
			w.addWork(&work[r], c, tr, r)
		}
		for name := range policies[r] {
			w.totals[r].policies[name].Services++
		}
		if failures[r] != nil {
			w.totals[r].failed++
			if len(w.totals[r].errors) < verdict.MaxErrors {
				w.totals[r].errors = append(w.totals[r].errors, failures[r].Error())
			}
		}
	}
	for i := range svc.ports {
		if svc.ports[i].loadPool < 0 {
			continue
		}
		w.addPort(svc, i, classes, runs, func(r int, out *ServiceResult) {
			for name, nodes := range policies[r] {
				if best := policies[r][out.Policy]; nodes > best || nodes == best && name < out.Policy {
					out.Policy = name
				}
			}
			out.WeightChanges, out.PluginCalls = work[r].changes, work[r].calls
			if failures[r] != nil {
				out.Error = failures[r].Error()
			}
		})
	}
}

// work is what nodes do.
type work struct{ changes, calls uint64 }

func (w *worker) addPolicy(nodes map[string]int, c *class, tr *trajectory, r int) {
	name, revision := "", ""
	if tr.policy != nil {
		name = tr.policy.Name
	}
	nodes[name] += c.members
	if w.totals[r].policies[name] == nil {
		if tr.policy != nil {
			revision = w.runs[r].evaluator.Revision(w.sim.in.Runs[r].Settings.Policies.Policies[name])
		}
		w.totals[r].policies[name] = &PolicyInfo{Name: name, Revision: revision}
	}
}

// addWork adds the work of the nodes of a class: from the beginning on, or all plugin calls if there is only the beginning.
func (w *worker) addWork(sum *work, c *class, tr *trajectory, r int) {
	for i := range tr.states {
		s := &tr.states[i]
		all := &w.totals[r].samples[w.sim.sampleAfter(s.at)]
		if s.at >= 0 && i > 0 {
			all.weightChanges += uint64(s.changes * c.members)
			sum.changes += uint64(s.changes * c.members)
		}
		if s.at >= 0 || w.sim.samples == 1 {
			all.pluginCalls += s.calls * uint64(c.members)
			sum.calls += s.calls * uint64(c.members)
		}
	}
}

// addPort adds the load of a port; complete adds to its result what concerns the Service.
func (w *worker) addPort(svc *serviceRun, i int, classes []class, runs [][]trajectory, complete func(run int, out *ServiceResult)) {
	sim, p := w.sim, &svc.ports[i]
	var loads []*portLoad
	for range w.runs {
		loads = append(loads, newPortLoad(p, sim.samples, len(sim.world.zones)))
	}
	diverging := make([]float64, sim.samples)
	for j := range classes {
		if classes[j].members > 0 {
			w.addClass(svc, i, &classes[j], runs[j], loads, diverging)
		}
	}
	k := keptService{results: make([]ServiceResult, len(w.runs)), loads: loads, asked: sim.asked[svc.service.Name]}
	demand, elsewhere := 0.0, 0.0
	for s, d := range diverging {
		w.diverging[s] += d
		elsewhere += d
		demand += loads[0].demand[s]
	}
	k.divergence = ratio(elsewhere, demand)
	var metrics [][]verdict.Metric
	for r, l := range loads {
		k.results[r] = w.summarize(l, r)
		k.results[r].Divergence = k.divergence
		complete(r, &k.results[r])
		k.results[r].round()
		metrics = append(metrics, k.results[r].Metrics())
	}
	w.conditions.AddService(k.results[0].Service, k.results[0].Service+":"+k.results[0].Port, metrics...)
	w.kept.add(&k)
}

// summarize adds the load of a port to the totals of a run, and returns it without its endpoints.
func (w *worker) summarize(l *portLoad, r int) ServiceResult {
	p, sim, all := l.port, w.sim, w.totals[r]
	out := ServiceResult{
		ServicePort: verdict.ServicePort{Service: p.name.Service.String(), Port: p.label(), Protocol: p.name.Protocol.String(), Family: p.family.String()},
		Endpoints:   []EndpointResult{},
	}
	var h histogram
	demand, failed := 0.0, 0.0
	for s := range sim.samples {
		t := sim.sampleTime(s)
		sample := &all.samples[s]
		l.overloads(s, t, func(_ int, load, overload float64) {
			if overload > out.MaxOverload {
				out.MaxOverload, out.MaxAtSeconds = overload, t.Seconds()
			}
			h.add(load, overload)
			sample.overload.add(load, overload)
		})
		demand += l.demand[s]
		failed += l.failed[s]
		sample.demand += l.demand[s]
		sample.failed += l.failed[s]
		sample.empty += l.empty[s]
		sample.single += l.single[s]
		out.EmptyPools, out.SinglePools = max(out.EmptyPools, l.empty[s]), max(out.SinglePools, l.single[s])
	}
	all.overload.merge(&h)
	out.P99Overload, out.MeanOverload, out.FailedShare = h.p99(), h.mean(), ratio(failed, demand)
	zoned, crossing := 0.0, 0.0
	zones := sim.world.zones
	for from := range zones {
		row := make([]float64, len(zones))
		for to := range zones {
			n := l.matrix[from*len(zones)+to]
			row[to] = n / float64(sim.samples)
			if zones[from] != "" && zones[to] != "" {
				if zoned += n; from != to {
					crossing += n
				}
			}
		}
		out.ZoneMatrix = append(out.ZoneMatrix, row)
	}
	out.CrossZoneShare = ratio(crossing, zoned)
	l.addBackends(&out)
	return out
}
