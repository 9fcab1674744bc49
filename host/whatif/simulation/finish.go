package simulation

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// result returns the result of all workers.
func (s *Simulation) result(workers []*worker) *Result {
	in := s.in
	out := &Result{
		Seed: in.Seed, Nodes: len(in.Cluster.Nodes), Services: len(s.services), Zones: s.world.zones, Demand: in.Demand.Text,
		Capacity: in.Capacity.String(), DurationSeconds: s.world.end.Seconds(), StepSeconds: s.step.Seconds(), Events: s.world.events, Asked: []string{},
		Notes: append([]string{}, s.notes...),
	}
	for _, name := range s.services {
		for _, slice := range in.Cluster.Slices[name] {
			out.Endpoints += len(slice.Endpoints)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.asked), model.Name.Compare) {
		out.Asked = append(out.Asked, name.String())
	}
	if in.Timeline != nil {
		out.Timeline = in.Timeline.Name
	}
	first := workers[0]
	for _, w := range workers[1:] {
		first.merge(w)
	}
	for r := range in.Runs {
		out.Runs = append(out.Runs, s.runResult(first, r))
	}
	kept := &first.kept
	kept.prune()
	for _, k := range kept.list {
		k.addEndpoints(s)
		for r := range k.results {
			out.Runs[r].Services = append(out.Runs[r].Services, k.results[r])
		}
	}
	for r := range out.Runs {
		slices.SortStableFunc(out.Runs[r].Services, func(a, b ServiceResult) int {
			return cmp.Or(cmp.Compare(b.MaxOverload, a.MaxOverload), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
		})
	}
	if len(in.Runs) == 2 {
		out.Comparison = s.compare(first)
		for r := range out.Runs {
			out.Runs[r].Summary.Divergence = out.Comparison.Divergence
		}
		out.Comparison.Metrics = verdict.Compare(out.Runs[0].Summary.Metrics(), out.Runs[1].Summary.Metrics())
	}
	for _, w := range workers {
		in.Conditions.Merge(w.conditions)
	}
	var metrics [][]verdict.Metric
	for r := range out.Runs {
		metrics = append(metrics, out.Runs[r].Summary.Metrics())
	}
	in.Conditions.AddRuns(metrics...)
	return out
}

// merge adds what another worker has added up.
func (w *worker) merge(other *worker) {
	for s, d := range other.diverging {
		w.diverging[s] += d
	}
	for r, t := range other.totals {
		mine := w.totals[r]
		mine.overload.merge(&t.overload)
		mine.failed += t.failed
		mine.errors = append(mine.errors, t.errors...)
		for name, p := range t.policies {
			if q := mine.policies[name]; q != nil {
				q.Services += p.Services
			} else {
				mine.policies[name] = p
			}
		}
		for s := range t.samples {
			mine.samples[s].merge(&t.samples[s])
		}
	}
	w.kept.list = append(w.kept.list, other.kept.list...)
}

func (a *sampleTotals) merge(b *sampleTotals) {
	a.demand += b.demand
	a.failed += b.failed
	a.zoned += b.zoned
	a.crossing += b.crossing
	for z := range b.zoneDemand {
		a.zoneDemand[z] += b.zoneDemand[z]
		a.zoneLoad[z] += b.zoneLoad[z]
	}
	a.overload.merge(&b.overload)
	a.empty += b.empty
	a.single += b.single
	a.weightChanges += b.weightChanges
	a.pluginCalls += b.pluginCalls
}

// runResult returns the result of a run without its Services.
func (s *Simulation) runResult(w *worker, r int) Run {
	config, t := &s.in.Runs[r], w.totals[r]
	out := Run{Run: verdict.Run{Name: verdict.Runs[r], Config: config.File}, Plugins: append([]PluginInfo{}, config.Plugins...), Policies: []PolicyInfo{}, Services: []ServiceResult{}}
	slices.Sort(t.errors)
	t.errors = slices.Compact(t.errors)
	out.Errors = append([]string{}, t.errors[:min(len(t.errors), verdict.MaxErrors)]...)
	for _, name := range sortedKeys(t.policies) {
		p := *t.policies[name]
		p.PerNode = s.perNode[r][name] || s.in.EveryNode
		out.Policies = append(out.Policies, p)
	}
	sum := Summary{MaxOverload: round(t.overload.largest), P99Overload: round(t.overload.p99()), MeanOverload: round(t.overload.mean()), Errors: t.failed}
	var all sampleTotals
	for i := range t.samples {
		a := &t.samples[i]
		all.demand += a.demand
		all.failed += a.failed
		all.zoned += a.zoned
		all.crossing += a.crossing
		sum.EmptyPools, sum.SingleEndpointPools = max(sum.EmptyPools, a.empty), max(sum.SingleEndpointPools, a.single)
		sum.WeightChanges += a.weightChanges
		sum.PluginCalls += a.pluginCalls
		out.Series = append(out.Series, Sample{
			Seconds: s.sampleTime(i).Seconds(), Demand: round(a.demand), ZoneDemand: rounded(a.zoneDemand), ZoneLoad: rounded(a.zoneLoad),
			CrossZoneShare: round(ratio(a.crossing, a.zoned)), FailedShare: round(ratio(a.failed, a.demand)),
			MaxOverload: round(a.overload.largest), P99Overload: round(a.overload.p99()), MeanOverload: round(a.overload.mean()),
			EmptyPools: a.empty, SingleEndpointPools: a.single, WeightChanges: a.weightChanges, PluginCalls: a.pluginCalls,
		})
	}
	sum.CrossZoneShare, sum.FailedShare = round(ratio(all.crossing, all.zoned)), round(ratio(all.failed, all.demand))
	out.Summary = sum
	return out
}

// compare returns how the candidate differs from the baseline. The kept Services are pruned and complete.
func (s *Simulation) compare(w *worker) *Comparison {
	out := &Comparison{Services: []ServiceComparison{}}
	demand, elsewhere := 0.0, 0.0
	for i, d := range w.diverging {
		all := w.totals[0].samples[i].demand
		out.Series = append(out.Series, round(ratio(d, all)))
		demand += all
		elsewhere += d
	}
	out.Divergence = round(ratio(elsewhere, demand))
	for _, k := range w.kept.ranked(2) {
		a, b := &k.results[0], &k.results[1]
		if k.divergence == 0 {
			break
		}
		out.Services = append(out.Services, ServiceComparison{
			ServicePort: a.ServicePort, Divergence: round(k.divergence),
			MaxOverload: verdict.Pair{Candidate: a.MaxOverload, Baseline: b.MaxOverload}, CrossZoneShare: verdict.Pair{Candidate: a.CrossZoneShare, Baseline: b.CrossZoneShare},
			FailedShare: verdict.Pair{Candidate: a.FailedShare, Baseline: b.FailedShare},
		})
	}
	return out
}

func (r *ServiceResult) round() {
	for _, f := range []*float64{&r.MaxOverload, &r.P99Overload, &r.MeanOverload, &r.CrossZoneShare, &r.FailedShare, &r.Divergence} {
		*f = round(*f)
	}
	for i := range r.ZoneMatrix {
		r.ZoneMatrix[i] = rounded(r.ZoneMatrix[i])
	}
}

// round rounds to six decimals: sums do not depend on the number of workers.
func round(f float64) float64 { return math.Round(f*1e6) / 1e6 }

func rounded(list []float64) []float64 {
	out := make([]float64, len(list))
	for i, f := range list {
		out[i] = round(f)
	}
	return out
}
