package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

// largeUpdate has the cost of a large update: its duration, number of transactions, the longest of them, and the latency of
// another Service's updates meanwhile.
type largeUpdate struct {
	What         string
	Seconds      float64 // of the last round
	Transactions int
	Longest      float64     // milliseconds
	Updates      int         // of the other Service
	Other        percentiles // milliseconds
	OtherCPU     percentiles // CPU time of the engine's thread meanwhile, which does not contain what other processes take

	latencies, cpu []float64 // of all rounds
}

// probeInterval is the interval of the other Service's updates.
const probeInterval = 5 * time.Millisecond

// Each large update is measured until there are minUpdates of the other Service, for a 99th percentile, in largeRounds at most,
// and calmUpdates of these alone.
const (
	largeRounds = 40
	minUpdates  = 500
	calmUpdates = 1000
)

// measureLargeUpdates measures large updates of a cluster with zone hints on every endpoint. The first result is without any.
func measureLargeUpdates(ctx context.Context, s size, how settings) (out []largeUpdate, err error) {
	ticks, err := newTicker(probeInterval)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ticks.stop()) }()
	l, err := newHarness(ctx, harnessOptions{modules: how.modules, chain: []string{"locality"}, alternating: true, locked: how.engineCPU})
	if err != nil {
		return nil, err
	}
	defer l.stop()
	w := newClusterState(s)
	w.hints = true
	if _, err := l.apply(w.all()); err != nil {
		return nil, err
	}
	gctuner.ReleaseStartup()
	calm := &largeUpdate{What: calmUpdate}
	if err := l.measureCalm(w, calm, ticks); err != nil {
		return nil, err
	}
	all := []*largeUpdate{calm}
	for round := range largeRounds {
		if round > 0 && !slices.ContainsFunc(all, func(h *largeUpdate) bool { return len(h.latencies) < minUpdates }) {
			break
		}
		if err := l.measureRound(w, &all, round, ticks, how); err != nil {
			return nil, err
		}
	}
	sum := &largeUpdate{What: "all of these, one after the other"}
	for _, h := range all[1:] {
		sum.latencies, sum.cpu, sum.Longest = append(sum.latencies, h.latencies...), append(sum.cpu, h.cpu...), max(sum.Longest, h.Longest)
	}
	for _, h := range append(all, sum) {
		h.Updates = len(h.latencies)
		h.Other, h.OtherCPU = percentilesOf(h.latencies), percentilesOf(h.cpu)
		out = append(out, *h)
	}
	return out, nil
}

// largeStep is a large update, and what undoes it if no other one does. Those after an optional one do not depend on it.
type largeStep struct {
	what          string
	changes, undo []model.Change
	optional      bool
	policies      []*policy.Object // instead of changes: the objects that are now in force; empty: none
}

// largeSteps returns the large updates of a round.
func (w *clusterState) largeSteps(round int) []largeStep {
	s := w.size
	giant, many := s.services, make([]model.SliceEndpoint, 10_000)
	for j := range many {
		w.last++
		many[j] = w.endpoint(giant, w.last)
		many[j].Hints = nil
	}
	flipped := append([]model.SliceEndpoint(nil), many...)
	flipped[17].Ready, flipped[17].Serving = false, false
	weighted := make([]model.SliceEndpoint, 10_000)
	for j := range weighted {
		w.last++
		weighted[j] = w.endpoint(giant+1, w.last)
		weighted[j].Hints = nil
	}
	var canaries, others, plain []model.Change
	for i := range min(500, s.services-1) {
		canaries, others, plain = append(canaries, alternate(1+i, "even")), append(others, alternate(1+i, "odd")), append(plain, service(1+i))
	}
	var burst []model.Change
	for i := range min(5000, s.services-1) {
		burst = append(burst, w.change(1+i, replaced))
	}
	var namespace []model.Change
	for i := range min(2000, s.services-1) {
		namespace = append(append(namespace, slicesOf(1+i, w.endpointsOfService(1+i))...), service(1+i))
	}
	manyPorts, contestants := tenantServices(1, 2000, 60), tenantServices(4000, 5, 0)
	return []largeStep{
		{what: "a Service with 10,000 endpoints is created", changes: append(slicesOf(giant, many), service(giant))},
		{what: "one of its endpoints becomes unready", changes: []model.Change{slice(giant, 0, flipped[:perSlice])}},
		{what: "it is deleted", changes: append(deletions(slicesOf(giant, many)), deletions([]model.Change{service(giant)})...)},
		{what: "a Service with 10,000 endpoints, half of them with weight 0, is created", changes: append(slicesOf(giant+1, weighted), alternate(giant+1, "even"))},
		{what: "the other half gets the weight", changes: []model.Change{alternate(giant+1, "odd")}},
		{what: "it is deleted", changes: append(deletions(slicesOf(giant+1, weighted)), deletions([]model.Change{service(giant + 1)})...)},
		{what: "500 Services of 10 endpoints get shares of 999, 1 and 0", changes: canaries, optional: true},
		{what: "all these weights change", changes: others, undo: plain, optional: true},
		{what: "this node's zone changes, and with it the endpoints of every Service", changes: []model.Change{node(0, zoneName(1+round))}},
		{what: fmt.Sprintf("%d slices change at once", len(burst)), changes: burst},
		{what: "a namespace with 2,000 Services is deleted", changes: deletions(namespace), undo: namespace},
		{what: "a Service with 2,000 ports and 60 external IPs is created", changes: manyPorts},
		{what: "it is deleted", changes: deletions(manyPorts)},
		{what: "4,000 Services that contest 5 NodePorts are created", changes: contestants},
		{what: "they are deleted", changes: deletions(contestants)},
		{what: "30 Services with 1,000 source ranges each are created", changes: rangedServices(0)},
		{what: "all these ranges change", changes: rangedServices(1)},
		{what: "they are deleted", changes: deletions(rangedServices(1))},
		{what: "1,000 ServicePolicies of a tenant are created", policies: tenantPolicies(s, "even"), optional: true},
		{what: "all of them change", policies: tenantPolicies(s, "odd"), optional: true},
		{what: "they are deleted", policies: []*policy.Object{}, optional: true},
	}
}

// measureRound measures each large update once more, and adds the results to those in all, which begins with the calm one.
func (l *harness) measureRound(w *clusterState, all *[]*largeUpdate, round int, ticks *ticker, how settings) error {
	steps := w.largeSteps(round)
	runtime.GC() // what the benchmark has left of them
	for i, step := range steps {
		if len(*all) == 1+i {
			*all = append(*all, &largeUpdate{What: step.what})
		}
		if step.optional && len((*all)[1+i].latencies) >= minUpdates {
			continue
		}
		profiled := func() {}
		if round == 0 {
			profiled = how.profile(fmt.Sprint("worst-", i))
		}
		err := l.measureLargeUpdate(w, (*all)[1+i], &step, ticks)
		profiled()
		if err == nil && step.undo != nil {
			_, err = l.apply(step.undo)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// tenantServices returns Services in a namespace of their own, with ports, the same NodePorts and external IPs.
func tenantServices(services, ports, externalIPs int) (out []model.Change) {
	for i := range services {
		s := &model.Service{
			Name:       model.Name{Namespace: "tenant", Name: fmt.Sprintf("svc-%d-%d", ports, i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})},
		}
		for j := range externalIPs {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, 100, byte(j)}))
		}
		for j := range ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", j), Protocol: model.TCP, Port: uint16(1 + j), NodePort: uint16(30000 + j)})
		}
		out = append(out, model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s})
	}
	return out
}

// rangedServices returns Services of a tenant with 1,000 source ranges each. Each generation has others.
func rangedServices(generation int) (out []model.Change) {
	for i := range 30 {
		s := &model.Service{
			Name:       model.Name{Namespace: "tenant", Name: fmt.Sprint("ranged-", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 201, 0, byte(i)})}, LoadBalancerIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})},
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
		}
		for j := range 1000 {
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(j >> 8), byte(j), byte(generation)}), 32))
		}
		out = append(out, model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s})
	}
	return out
}

func deletions(list []model.Change) (out []model.Change) {
	for _, c := range list {
		out = append(out, model.Change{Kind: c.Kind, Name: c.Name})
	}
	return out
}

// measureCalm updates Service 0 at each tick.
func (l *harness) measureCalm(w *clusterState, h *largeUpdate, ticks *ticker) error {
	l.latencies.reset()
	begin := time.Now()
	for range calmUpdates {
		if err := l.update(w, begin, ticks); err != nil {
			return err
		}
	}
	return l.collect(h, begin)
}

// tenantPolicies returns ServicePolicies with a plugin, each for a Service.
func tenantPolicies(s size, plugin string) (out []*policy.Object) {
	for i := range min(1000, s.services-1) {
		of := service(1 + i).Name
		name := model.Name{Namespace: of.Namespace, Name: "policy-" + of.Name}
		out = append(out, &policy.Object{
			Name: name, Targets: []policy.Target{{Service: of.Name}},
			Policy: &policy.Policy{Name: policy.ObjectPolicyName(name), Steps: []policy.Step{{Plugin: plugin}}},
		})
	}
	return out
}

// setPolicies brings objects into force as the agent does.
func (l *harness) setPolicies(objects []*policy.Object) error {
	before := l.policies
	l.policies = &policy.Set{Policies: before.Policies, Bindings: before.Bindings, Default: before.Default}
	l.policies.SetObjects(objects)
	changed := objects
	if len(objects) == 0 {
		changed = before.Objects()
	}
	return l.engine.Do(context.Background(), func(p *planner.Planner) { p.SetPolicies(l.policies, changed) })
}

// measureLargeUpdate makes a large update, and updates Service 0 at each tick until all is programmed.
func (l *harness) measureLargeUpdate(w *clusterState, h *largeUpdate, step *largeStep, ticks *ticker) error {
	l.latencies.reset()
	begin := time.Now()
	changes := step.changes
	if step.policies != nil {
		if err := l.setPolicies(step.policies); err != nil {
			return err
		}
		changes = []model.Change{w.change(1, replaced)} // it is acknowledged when nothing is left to do
	}
	l.send(begin, changes)
	for !l.latencies.unmarkedIdle() {
		if err := l.update(w, begin, ticks); err != nil {
			return err
		}
	}
	return l.collect(h, begin)
}

// update updates Service 0 at the next tick after begin.
func (l *harness) update(w *clusterState, begin time.Time, ticks *ticker) error {
	due, err := ticks.nextAfter(begin)
	if err == nil {
		l.latencies.mark()
		l.send(due, []model.Change{w.change(0, replaced)})
	}
	return err
}

// collect waits until all is programmed, and adds what was measured since begin.
func (l *harness) collect(h *largeUpdate, begin time.Time) error {
	if err := l.waitProgrammed(); err != nil {
		return err
	}
	sum := l.latencies.reset()
	h.Seconds = max(sum.last.Sub(begin).Seconds(), 0)
	h.Transactions, h.Longest = sum.transactions, max(h.Longest, milliseconds(sum.longest))
	h.latencies, h.cpu = append(h.latencies, sum.marked...), append(h.cpu, sum.markedCPU...)
	return nil
}

// calmUpdate is the name of the measurement without a large update.
const calmUpdate = "nothing else changes"

func printLargeUpdates(w io.Writer, s string, all []largeUpdate) {
	fmt.Fprintf(w, "\n**Large updates**, %s, zone hints on every endpoint, each until %d updates of an endpoint of another Service, every 5 ms, at most %d times\n\n", s, minUpdates, largeRounds)
	fmt.Fprint(w, "| | total, s | transactions | longest, ms | updates of the other Service | latency, ms: median, p99, max | p99, more than calm |\n|---|---|---|---|---|---|---|\n")
	for _, h := range all {
		fmt.Fprintf(w, "| %s | %.3f | %d | %.0f | %d | %.1f, %.1f, %.1f | %.1f |\n", h.What, h.Seconds, h.Transactions, h.Longest, h.Updates,
			h.Other.Median, h.Other.P99, h.Other.Max, h.Other.P99-all[0].Other.P99)
	}
}
