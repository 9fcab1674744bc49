package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// Simulation is an input that has been prepared. Workers may use it concurrently.
type Simulation struct {
	in        *Input
	world     *world
	demand    demandOf
	rules     []*eligibility.EndpointRules // of each run
	groups    []*group
	services  []model.Name // sorted
	routes    routes
	units     [][]model.Name // those with some of services
	asked     map[model.Name]bool
	lifetime  time.Duration
	step      time.Duration
	samples   int
	maxExact  int
	witnesses int // of a class
	notes     []string
	// perNode are the policies of each run whose decisions depend on the node itself.
	perNode []map[string]bool
	restart atomic.Bool // perNode of a worker has grown: what the others do is of no use
}

// New prepares a simulation.
func New(in Input) (*Simulation, error) {
	switch {
	case len(in.Runs) < 1 || len(in.Runs) > 2:
		return nil, errors.New("simulation: want one or two configurations")
	case len(in.Cluster.Nodes) == 0:
		return nil, errors.New("simulation: the cluster has no Nodes: their names and zones are needed")
	case in.Cluster.NodesPartial:
		return nil, errors.New("simulation: all Nodes of the cluster are needed")
	}
	s := &Simulation{in: &in, lifetime: cmp.Or(in.Lifetime, defaultLifetime), maxExact: maxExact}
	in.Runs = slices.Clone(in.Runs)
	for i := range in.Runs {
		c := &in.Runs[i]
		c.Period = cmp.Or(c.Period, defaultPeriod)
		s.rules = append(s.rules, c.Settings.EndpointRules(in.Cluster))
		s.perNode = append(s.perNode, map[string]bool{})
	}
	var err error
	if s.world, err = newWorld(&in); err != nil {
		return nil, err
	}
	s.demand = newDemandOf(in.Demand, in.Cluster.Nodes)
	s.groups = groupsOf(&in, s.world, &s.demand)
	for _, name := range slices.SortedFunc(maps.Keys(in.Cluster.Services), model.Name.Compare) {
		if in.Only == nil || in.Only(name) {
			s.services = append(s.services, name)
		}
	}
	s.routes = newRoutes(in.Cluster)
	s.units = slices.DeleteFunc(s.routes.unitsOf(in.Cluster), func(unit []model.Name) bool {
		return in.Only != nil && !slices.ContainsFunc(unit, in.Only)
	})
	s.setAsked()
	s.witnesses = min(max(maxChecks/max(1, len(s.services)*len(s.groups)), minWitnesses), maxWitnesses)
	s.setSamples()
	s.setNotes()
	return s, nil
}

// setAsked finds the Services that the caller or a statement of the timeline names, and the parents of routes that it does.
func (s *Simulation) setAsked() {
	s.asked = map[model.Name]bool{}
	names := slices.Clone(s.in.Asked)
	if s.in.Timeline != nil {
		for _, statement := range s.in.Timeline.Statements {
			for _, arg := range statement.Args {
				namespace, name, _ := strings.Cut(arg, "/")
				names = append(names, model.Name{Namespace: namespace, Name: name})
			}
			if statement.Verb == weightVerb {
				for _, r := range s.world.routesNamed(statement.Args[0]) {
					parents, _ := r.Services()
					names = append(names, parents...)
				}
			}
		}
	}
	for _, name := range names {
		if s.in.Cluster.Services[name] != nil && (s.in.Only == nil || s.in.Only(name)) && len(s.asked) < MaxAsked {
			s.asked[name] = true
		}
	}
}

// setSamples sets the times of the samples: from the beginning to the end, both included.
func (s *Simulation) setSamples() {
	if s.samples = 1; s.world.end == 0 {
		return
	}
	s.step = s.in.Step
	if s.step <= 0 {
		s.step = minStep
	}
	for s.world.end/s.step >= MaxSamples {
		s.step *= 2
	}
	s.samples = int((s.world.end+s.step-1)/s.step) + 1
}

// sampleTime returns the time of a sample. The last one may follow after less than a step.
func (s *Simulation) sampleTime(i int) time.Duration {
	return min(time.Duration(i)*s.step, s.world.end)
}

// sampleAfter returns the first sample that is not before t.
func (s *Simulation) sampleAfter(t time.Duration) int {
	if s.step == 0 || t <= 0 {
		return 0
	}
	return min(int((t+s.step-1)/s.step), s.samples-1)
}

func (s *Simulation) setNotes() {
	note := func(format string, args ...any) { s.notes = append(s.notes, fmt.Sprintf(format, args...)) }
	const maxListed = 5
	if !s.in.Start.IsZero() || s.in.Timeline != nil && s.in.Timeline.HasClock() {
		note("for plugins, the beginning is %s UTC", s.world.start.UTC().Format("2006-01-02 15:04:05"))
	}
	unknown := s.demand.unknown(s.in.Cluster)
	for i, name := range unknown {
		if i == maxListed {
			note("%s: %d more rules name what the cluster does not have", s.in.Demand.Text, len(unknown)-i)
			break
		}
		note("%s: the cluster has no %s", s.in.Demand.Text, name)
	}
	if s.in.Demand.ByCPU && s.demand.meanCPU == 0 {
		note("the allocatable CPU of no Node is known: all have the same demand")
	}
	if s.in.Capacity != "" && len(s.in.Cluster.Pods) == 0 {
		note("capacity %s: the cluster has no Pods: all endpoints have the same capacity", s.in.Capacity)
	}
	for i := range s.in.Runs {
		for _, name := range sortedKeys(policiesOf(s.in.Runs[i].Settings.Policies)) {
			if p := s.in.Runs[i].Settings.Policies.Policies[name]; p.Guard.FailedPercent > 0 {
				note("%s: policy %s is in force from the beginning: its guard is not simulated", verdict.Label(s.in.Runs[i].File), name)
			}
		}
	}
}

func policiesOf(s *policy.Set) map[string]*policy.Policy {
	if s == nil {
		return nil
	}
	return s.Policies
}

// Run simulates all Services. plugins are those of each worker, then of each run: a plugin is used by one worker. parallel calls
// f for each worker, 0 to n-1, and returns when all calls have; nil calls one after the other.
func (s *Simulation) Run(plugins [][]Plugins, parallel func(n int, f func(int))) *Result {
	if parallel == nil {
		parallel = func(n int, f func(int)) {
			for i := range n {
				f(i)
			}
		}
	}
	for {
		s.restart.Store(false)
		workers := make([]*worker, len(plugins))
		parallel(len(workers), func(i int) {
			workers[i] = s.newWorker(plugins[i])
			for j := i; j < len(s.units) && !s.restart.Load(); j += len(workers) {
				workers[i].add(s.units[j])
			}
		})
		if !s.restart.Load() {
			return s.result(workers)
		}
		for _, w := range workers {
			for i := range s.perNode {
				maps.Copy(s.perNode[i], w.perNode[i])
			}
		}
	}
}
