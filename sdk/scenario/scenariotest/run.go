// Package scenariotest executes scenarios of plugins: a Service port on one node, whose plugin decides over virtual time. The Engine that
// decides is either the proxy itself (host/plugin/plugintest) or, for native tests, sdk/sdktest.
package scenariotest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Epoch is the time at which scenarios begin, in Unix milliseconds.
const Epoch = 1_750_000_000_000

// Period is the time between two readings of the outcomes of connections: that of a host with its default settings.
const Period = 500 * time.Millisecond

// MaxPlans bounds how often an engine decides in a scenario, at most once a reading and once at each time that a plugin asks for.
const MaxPlans = 100_000

// runner executes a scenario.
type runner struct {
	file        *scenario.File
	engine      Engine
	proceed     func() error
	cluster     Cluster
	now         time.Time
	dirty       bool      // the cluster has changed since the last Plan, or there was none
	planned     bool      // there was a Plan
	wake        time.Time // that the last Plan has returned
	nextReading time.Time // zero: there was no traffic
	rate        float64   // new connections a second
	addrs       int       // that endpoints have got
	plans       int
}

// Run executes a scenario and returns what its statements print. An error names file and line. Before each decision proceed may end it with an
// error; nil: nothing does.
func Run(f *scenario.File, e Engine, proceed func() error) (*Result, error) {
	if err := Verbs.Check(f); err != nil {
		return nil, err
	}
	r := &runner{file: f, engine: e, proceed: proceed, dirty: true, now: time.UnixMilli(Epoch)}
	r.cluster.Service = Service{Namespace: "default", Name: "web", Number: 80, Protocol: 6, Family: 4}
	result := &Result{File: f}
	for i := range f.Statements {
		s := &f.Statements[i]
		printed, err := r.execute(s)
		if err != nil {
			return nil, f.Errorf(s, "%w", err)
		}
		result.Printed = append(result.Printed, printed)
	}
	return result, nil
}

func (r *runner) execute(s *scenario.Statement) (printed printed, err error) {
	if err := r.advance(time.UnixMilli(Epoch).Add(s.At)); err != nil {
		return printed, err
	}
	switch s.Verb {
	case "decide", "calls":
		return r.print(s)
	case "restart":
		if err := r.plan(); err != nil {
			return printed, err
		}
		r.dirty = true
		return printed, r.engine.Restart(r.now)
	}
	r.dirty = true
	return printed, r.change(s)
}

// advance moves the time, and plans at each time before at which that is due. What is due then is planned together with the changes that
// the statements at this time make.
func (r *runner) advance(to time.Time) error {
	for r.now.Before(to) {
		if err := r.plan(); err != nil {
			return err
		}
		r.now = to
		for _, at := range []time.Time{r.wake, r.nextReading} {
			if !at.IsZero() && at.Before(r.now) {
				r.now = at
			}
		}
		if r.due(r.nextReading) {
			r.read()
		}
	}
	return nil
}

func (r *runner) due(at time.Time) bool { return !at.IsZero() && !at.After(r.now) }

// plan decides, if anything has changed or is due.
func (r *runner) plan() (err error) {
	if !r.dirty && !r.due(r.wake) {
		return nil
	}
	if len(r.cluster.Nodes) == 0 {
		return errors.New("no node: the first line `node NAME` names the one that decides")
	}
	if r.plans++; r.plans > MaxPlans {
		return fmt.Errorf("more than %d decisions", MaxPlans)
	}
	if r.proceed != nil {
		if err := r.proceed(); err != nil {
			return err
		}
	}
	r.dirty, r.planned = false, true
	r.wake, err = r.engine.Plan(&r.cluster, r.now)
	if err == nil && r.due(r.wake) {
		return fmt.Errorf("the engine wants to decide again at once, at %s", r.wake.Sub(time.UnixMilli(Epoch)))
	}
	return err
}

// read makes the connections of the time since the last reading, and takes another one.
func (r *runner) read() {
	r.connect(r.rate * Period.Seconds())
	r.engine.Read(&r.cluster, r.now)
	r.nextReading = r.now.Add(Period)
	r.dirty = true
}

// connect makes n new connections to the endpoints of the cluster pool, by weight. What is left of fractions is for the next time.
func (r *runner) connect(n float64) {
	d, err := r.engine.Decision(&r.cluster, abi.PoolCluster)
	if err != nil {
		return // the cluster pool is not used
	}
	total := 0.0
	for _, s := range d.Endpoints {
		total += float64(s.Weight)
	}
	for i := range r.cluster.Endpoints {
		e := &r.cluster.Endpoints[i]
		if i >= len(d.Endpoints) || d.Endpoints[i].Weight == 0 {
			continue
		}
		// The conversion prevents fused operations, which would make the result depend on the processor.
		e.credit += float64(n * float64(d.Endpoints[i].Weight) / total)
		whole := math.Floor(e.credit + 1e-9)
		e.credit -= whole
		e.Counters.Attempts += uint64(whole)
		switch e.Responds {
		case Answers:
			e.Counters.Answered += uint64(whole)
		case Refuses:
			e.Counters.Refused += uint64(whole)
		}
	}
}
