// Package replay decides again, in virtual time, about what a node has recorded: what one configuration, or two, would have
// planned, and when and for which Services they differ.
//
// It is pure: no clock, no file, no goroutine.
package replay

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Config is what decides in a run.
type Config struct {
	File     string // configuration file, "" for the default rules
	Settings planner.Settings
	Plugins  func(name string) (policy.Plugin, error)
	// OnPlan, if set, is called after each plan, for tests.
	OnPlan func(now time.Time, p *planner.Planner)
}

// Options are what the Result is about.
type Options struct {
	Only       func(model.Name) bool // Services; nil: all
	Conditions verdict.Conditions    // to which the metrics of all Services and runs are added
}

// run is a planner of a Config.
type run struct {
	*Config
	planner *planner.Planner
	requeue *scenario.Timer
	only    func(model.Name) bool
	due     bool // to be planned before the time moves on
	result  Run
	errors  map[string]bool
	changed map[plan.Key]bool // since the last comparison
}

// replay is a replay at a time.
type replay struct {
	options Options
	reader  *recording.Reader
	runs    []*run
	signals signals
	world   *model.Snapshot // for the names of Pods
	started time.Time
	clock   scenario.Clock // since started
	result  *Result
	compare *comparison // nil: there is one run
}

// Replay replays a recording with one or two configurations. The error is that of the recording; one that ends too early is in
// the Result.
func Replay(r *recording.Reader, configs []Config, o Options) (*Result, error) {
	if len(configs) < 1 || len(configs) > 2 {
		return nil, errors.New("replay: want one or two configurations")
	}
	if o.Only == nil {
		o.Only = func(model.Name) bool { return true }
	}
	p := &replay{options: o, reader: r, result: &Result{Header: r.Header, Runs: []Run{}, Notes: []string{}}, signals: signals{tracker: outcomes.NewTracker()}}
	for i := range configs {
		c := &configs[i]
		c.Settings.Node = r.Header.Node
		one := &run{Config: c, planner: planner.New(c.Settings, c.Plugins), errors: map[string]bool{}, changed: map[plan.Key]bool{}}
		one.only, one.result = o.Only, Run{Run: verdict.Run{Name: verdict.Runs[i], Config: c.File, Errors: []string{}}}
		one.requeue = p.clock.Timer(func() error { one.due = true; return nil })
		one.planner.UseSignals(&p.signals)
		p.runs = append(p.runs, one)
	}
	if len(configs) == 2 {
		p.compare = newComparison()
	}
	p.clock.Settle = p.settle
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, recording.ErrTruncated) && !p.started.IsZero() {
			p.result.Truncated = true
			break
		}
		if err != nil {
			return nil, err
		}
		if err := p.add(rec); err != nil {
			return nil, err
		}
	}
	return p.finish(), nil
}

// add replays a record.
func (p *replay) add(rec *recording.Record) error {
	if p.started.IsZero() {
		p.started = rec.At
		p.result.From = rec.At.UTC()
	}
	if err := p.clock.Advance(rec.At.Sub(p.started)); err != nil {
		return err
	}
	if rec.State {
		p.state(rec)
	} else {
		p.result.Changes += len(rec.Changes)
	}
	for _, c := range rec.Changes {
		p.world.Apply(c)
	}
	if !rec.State {
		for _, r := range p.runs {
			r.planner.Apply(rec.Changes)
		}
	}
	if rec.Reading != nil {
		p.reading(rec)
	}
	if rec.Closed {
		p.signals.open = outcomes.Open{}
	}
	if rec.Open != nil {
		p.signals.open = outcomes.NewOpen(rec.At, rec.Open, p.signals.tracker)
	}
	if len(rec.Changes) > 0 || rec.Reading != nil {
		for _, r := range p.runs {
			r.due = true
		}
		return p.settle()
	}
	return nil
}

// state replaces the cluster state.
func (p *replay) state(rec *recording.Record) {
	p.world = model.NewSnapshot()
	p.result.Dropped += rec.Lost
	if p.result.Keep == nil || !p.result.Keep.Equal(&rec.Keep) {
		keep := rec.Keep
		p.result.Keep = &keep
	}
	for _, r := range p.runs {
		cluster := model.NewSnapshot()
		for _, c := range rec.Changes {
			cluster.Apply(c)
		}
		r.planner.Replace(cluster)
	}
	if rec.Lost > 0 {
		p.signals = signals{tracker: outcomes.NewTracker()}
		for _, r := range p.runs {
			r.planner.UseSignals(&p.signals)
		}
	}
}

// maxInstant bounds the plans at one time.
const maxInstant = 1000

func (p *replay) now() time.Time { return p.started.Add(p.clock.Now()) }

// settle brings the plans of runs that are due up to date.
func (p *replay) settle() error {
	for _, r := range p.runs {
		if !r.due {
			continue
		}
		r.due = false
		requeueAt, err := r.plan(p.now())
		if err != nil {
			return err
		}
		if r.requeue.Stop(); !requeueAt.IsZero() {
			r.requeue.Set(max(requeueAt.Sub(p.started), p.clock.Now()+time.Millisecond))
		}
	}
	p.compared()
	return nil
}

// plan brings the plan of a run up to date, and returns when it is due again, the zero Time for only on a change.
func (r *run) plan(now time.Time) (time.Time, error) {
	for range maxInstant {
		res := r.planner.PlanNow(now)
		r.count(&res)
		if r.OnPlan != nil {
			r.OnPlan(now, r.planner)
		}
		if res.Remaining == 0 {
			return res.RequeueAt, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: %d plans at %s without an end", verdict.Label(r.File), maxInstant, now.UTC())
}

// count adds a plan to the result.
func (r *run) count(res *planner.Result) {
	s := &r.result.Summary
	for _, err := range res.Errors {
		var of *planner.ServiceError
		if errors.As(err, &of) && !r.only(of.Service) {
			continue
		}
		s.Errors++
		if text := err.Error(); !r.errors[text] && len(r.errors) < verdict.MaxErrors {
			r.errors[text] = true
			r.result.Errors = append(r.result.Errors, text)
		}
	}
	updated := res.Delta.Global != nil
	for i := range res.Delta.Changes {
		c := &res.Delta.Changes[i]
		r.changed[c.Key] = true
		if (c.New == nil || !r.only(c.New.Owner.Service)) && (c.Old == nil || !r.only(c.Old.Owner.Service)) {
			continue
		}
		updated = true
		s.WeightChanges += weightChanges(c.Old, c.New)
		s.empty(c)
	}
	if updated {
		s.Updates++
	}
	s.MaxEmptyPools = max(s.MaxEmptyPools, s.emptyNow)
	for _, reset := range res.Resets {
		if f := r.planner.Current().Frontends[reset.Frontend]; f == nil || r.only(f.Owner.Service) {
			s.Resets++
		}
	}
	s.PluginCalls = r.planner.PluginCalls()
}

// reading replays what happened to the outcomes of connections.
func (p *replay) reading(rec *recording.Record) {
	g, r := &p.signals, rec.Reading
	switch r.Kind {
	case recording.Read:
		p.result.Readings++
		g.active, g.interval = true, r.Interval
		changes := g.tracker.Update(rec.At, maps.All(r.Counters))
		_, at, window := g.tracker.Last()
		for _, run := range p.runs {
			run.planner.AddOutcomes(at, window, changes)
		}
	case recording.Begun:
		g.tracker.Update(rec.At, func(func(model.EndpointKey, outcomes.Counters) bool) {})
	case recording.Stopped:
		g.active = false
	case recording.Rebased:
		*g = signals{tracker: outcomes.NewTracker()}
	}
}

// compared compares the runs where one of them has changed.
func (p *replay) compared() {
	if p.compare == nil {
		return
	}
	a, b := p.runs[0], p.runs[1]
	maps.Copy(a.changed, b.changed)
	if len(a.changed) == 0 {
		return
	}
	for _, key := range slices.SortedFunc(maps.Keys(a.changed), plan.Key.Compare) {
		p.compare.update(p, key, a.planner.Current().Frontends[key], b.planner.Current().Frontends[key])
	}
	clear(a.changed)
	clear(b.changed)
	p.compare.settle(p)
}

// signals are what was known of connections. It implements policy.Signals.
type signals struct {
	tracker  *outcomes.Tracker
	active   bool
	interval time.Duration
	open     outcomes.Open
}

// staleIntervals is for how many intervals a reading may be used, as in host/engine.
const staleIntervals = 5

// OutcomesWindow implements policy.Signals.
func (g *signals) OutcomesWindow(now time.Time) (uint64, time.Duration) {
	reading, at, window := g.tracker.Last()
	if !g.active || window == 0 || now.Sub(at) > staleIntervals*g.interval {
		return 0, 0
	}
	return reading, window
}

// Outcomes implements policy.Signals.
func (g *signals) Outcomes(k model.EndpointKey) (abi.Outcomes, uint64) { return g.tracker.Outcomes(k) }

// ConnectionsAge implements policy.Signals.
func (g *signals) ConnectionsAge(now time.Time) (time.Duration, bool) { return g.open.Age(now) }

// Connections implements policy.Signals.
func (g *signals) Connections(k model.EndpointKey) (uint32, bool) {
	return g.open.Connections(k, g.tracker)
}
