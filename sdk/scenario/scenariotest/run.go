// Package scenariotest executes scenarios of plugins: a Service port on one node, whose plugin decides over virtual time. The
// Engine that decides is either the proxy itself (host/plugin/plugintest) or, for native tests, sdk/sdktest.
package scenariotest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Epoch is the time at which scenarios begin, in Unix milliseconds, and the time from which one with a clock begins at its time
// of day.
const Epoch = 1_750_000_000_000

// Period is the time between two readings of the outcomes of connections: that of a host with its default settings.
const Period = 500 * time.Millisecond

// MaxPlans bounds how often an engine decides in a scenario, at most once a reading and once at each time that a plugin asks for.
const MaxPlans = 100_000

// runner executes a scenario.
type runner struct {
	engine  Engine
	proceed func() error
	cluster Cluster
	clock   scenario.Clock
	begin   time.Time
	dirty   bool            // the cluster has changed since the last Plan, or there was none
	planned bool            // there was a Plan
	wake    *scenario.Timer // at the time that the last Plan has returned
	reading *scenario.Timer
	rate    float64 // new connections a second
	traffic bool    // there was some
	addrs   int     // that endpoints have got
	plans   int
	result  Result
}

// Run executes a scenario and returns what its statements print. An error names file and line. Before each decision proceed may
// end it with an error; nil: nothing does.
func Run(f *scenario.File, e Engine, proceed func() error) (*Result, error) {
	if err := Verbs.Check(f); err != nil {
		return nil, err
	}
	r := &runner{engine: e, proceed: proceed, begin: f.Begin(time.UnixMilli(Epoch)), dirty: true, result: Result{File: f, printed: map[*scenario.Statement]printed{}}}
	r.cluster.Service = Service{Namespace: "default", Name: "web", Number: 80, Protocol: 6, Family: 4}
	r.clock.Settle = r.plan
	r.wake = r.clock.Timer(func() error { r.dirty = true; return nil })
	r.reading = r.clock.Timer(r.read)
	if err := Verbs.Run(f, &r.clock, r); err != nil {
		return nil, err
	}
	return &r.result, nil
}

func (r *runner) now() time.Time { return r.begin.Add(r.clock.Now()) }

func (r *runner) restart(*scenario.Statement) error {
	if err := r.plan(); err != nil {
		return err
	}
	r.dirty = true
	return r.engine.Restart(r.now())
}

// plan decides, if anything has changed or is due.
func (r *runner) plan() error {
	if !r.dirty {
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
	wake, err := r.engine.Plan(&r.cluster, r.now())
	r.wake.Stop()
	if wake.IsZero() || err != nil {
		return err
	}
	at := wake.Sub(r.begin)
	if at <= r.clock.Now() {
		return fmt.Errorf("the engine wants to decide again at once, at %s", at)
	}
	r.wake.Set(at)
	return nil
}

// read makes the connections of the time since the last reading, and takes another one.
func (r *runner) read() error {
	r.connect(r.rate * Period.Seconds())
	r.engine.Read(&r.cluster, r.now())
	r.reading.Set(r.clock.Now() + Period)
	r.dirty = true
	return nil
}

// connect makes n new connections to the endpoints of the cluster pool, by weight. What is left of fractions is for the next
// time.
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
		case scenario.Answers:
			e.Counters.Answered += uint64(whole)
		case scenario.Refuses:
			e.Counters.Refused += uint64(whole)
		}
	}
}
