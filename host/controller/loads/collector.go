// Package loads asks the endpoints of Services for their load, each by one stream, and says what to write of it. It knows no
// Kubernetes: who calls it reads Pods and writes objects.
package loads

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/controller/orca"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Bounds of streams.
const (
	interval     = 10 * time.Second // between reports
	connectRate  = 50               // connections a second, of all namespaces in turn
	checkTimeout = 5 * time.Second  // until the Pod of an endpoint has been read
	minBackoff   = time.Second      // before an endpoint that has failed is asked again, at first
	maxBackoff   = 5 * time.Minute  // after failures in a row
	steady       = time.Minute      // for how long a stream is to last, for the next failure to be a first one
	valid        = 3 * time.Minute  // for how long a report counts
)

// Options of a collector.
type Options struct {
	// Check reads the Pod of an endpoint and returns why the endpoint is not to be asked, nil if it may.
	Check func(ctx context.Context, namespace string, e Endpoint) error
	// Ask is orca.Stream.
	Ask func(ctx context.Context, addr netip.AddrPort, interval time.Duration, report func(*orca.Report)) error
}

// Counts of a collector; those without "now" only grow.
type Counts struct {
	Services, Endpoints, Streams       int // now; streams have reported, and last
	OmittedEndpoints                   int // now: beyond a bound
	Connects, Refused, Failed, Reports int64
	OmittedValues                      int64 // of reports: names and numbers that plugins cannot see, and those beyond a bound
}

// Collector asks endpoints. Its methods may be called concurrently.
type Collector struct {
	options Options
	wake    chan struct{}

	mu       sync.Mutex
	services map[model.Name]*service
	targets  map[key]*target
	turns    []*turn // by name of the namespace
	last     string  // namespace of the last connection
	next     time.Time
	counts   Counts
}

// service is a Service with what is asked for it.
type service struct {
	Service
	targets []*target // by address
	since   time.Time
}

// turn is a namespace, which connects in turn with the others.
type turn struct {
	namespace string
	targets   []*target
}

// New returns a collector that asks nobody yet.
func New(o Options) *Collector {
	return &Collector{options: o, wake: make(chan struct{}, 1), services: map[model.Name]*service{}, targets: map[key]*target{}}
}

// Set makes the collector ask the endpoints of these Services (Choose) and no others: streams to others end.
func (c *Collector) Set(all []Service) {
	admitted, omitted := admit(all)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.OmittedEndpoints = omitted
	before, known := c.services, c.targets
	c.services, c.targets, c.turns = make(map[model.Name]*service, len(admitted)), make(map[key]*target, len(known)), nil
	for i := range admitted {
		s := &service{Service: admitted[i], since: now}
		old := before[s.Name]
		if old != nil && old.UID == s.UID {
			s.since = old.since
		}
		for _, e := range s.Endpoints {
			s.targets = append(s.targets, c.target(key{s.Name.Namespace, s.Port, e}, known))
		}
		if old == nil {
			s.goOn(now)
		}
		s.Written = nil
		c.services[s.Name] = s
	}
	for k, t := range known {
		if c.targets[k] == nil && t.cancel != nil {
			t.cancel()
		}
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// target returns what is asked for an endpoint, of several Services once. Services come sorted by namespace.
func (c *Collector) target(k key, known map[key]*target) *target {
	if t := c.targets[k]; t != nil {
		return t
	}
	t := known[k]
	if t == nil {
		t = &target{key: k}
	}
	c.targets[k] = t
	if n := len(c.turns); n == 0 || c.turns[n-1].namespace != k.namespace {
		c.turns = append(c.turns, &turn{namespace: k.namespace})
	}
	of := c.turns[len(c.turns)-1]
	of.targets = append(of.targets, t)
	return t
}

// Run asks until ctx ends. All streams have ended when it returns.
func (c *Collector) Run(ctx context.Context) {
	var streams sync.WaitGroup
	defer streams.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		timer.Reset(c.connect(ctx, &streams))
	}
}

// connect asks the endpoint whose turn it is, and returns after which time to call it again.
func (c *Collector) connect(ctx context.Context, streams *sync.WaitGroup) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if wait := c.next.Sub(now); wait > 0 {
		return wait
	}
	t, due := c.due(now)
	if t == nil {
		return due.Sub(now)
	}
	c.next, c.last = now.Add(time.Second/connectRate), t.namespace
	c.counts.Connects++
	ctx, t.cancel = context.WithCancel(ctx)
	streams.Go(func() { c.ask(ctx, t) })
	return time.Second / connectRate
}

// due returns the endpoint that has waited longest in the next namespace that has one, or when one will be due.
func (c *Collector) due(now time.Time) (*target, time.Time) {
	first, _ := slices.BinarySearchFunc(c.turns, c.last, func(t *turn, last string) int {
		if t.namespace <= last {
			return -1
		}
		return 1
	})
	soon := now.Add(maxBackoff)
	for i := range c.turns {
		var longest *target
		for _, t := range c.turns[(first+i)%len(c.turns)].targets {
			if t.cancel == nil && (longest == nil || t.due.Before(longest.due)) {
				longest = t
			}
		}
		switch {
		case longest == nil:
		case !longest.due.After(now):
			return longest, now
		case longest.due.Before(soon):
			soon = longest.due
		}
	}
	return nil, soon
}

// ask asks an endpoint until its stream ends.
func (c *Collector) ask(ctx context.Context, t *target) {
	defer t.cancel()
	begun := time.Now()
	checking, checked := context.WithTimeout(ctx, checkTimeout)
	err := c.options.Check(checking, t.namespace, t.Endpoint)
	checked()
	refused := err != nil
	if !refused {
		err = c.options.Ask(ctx, netip.AddrPortFrom(t.Addr, t.port), interval, func(r *orca.Report) { c.report(t, r) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.cancel, t.reporting = nil, false
	if ctx.Err() != nil {
		return // by whoever no longer wants it
	}
	if t.err = short(err); refused {
		c.counts.Refused++
	} else {
		c.counts.Failed++
	}
	if time.Since(begun) > steady {
		t.failures = 0
	}
	t.due = time.Now().Add(backoff(t.failures))
	t.failures++
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// backoff returns how long an endpoint is left alone after it has failed, and had so many times in a row before: half of it at
// random, so that endpoints that fail together do not come back together.
func backoff(before int) time.Duration {
	d := min(minBackoff<<min(before, 16), maxBackoff)
	return d/2 + rand.N(d/2)
}

// report takes what an endpoint reports.
func (c *Collector) report(t *target, r *orca.Report) {
	values := make(map[string]string, len(r.Values))
	for name, value := range r.Values {
		values[name] = orca.Text(value)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Reports++
	c.counts.OmittedValues += int64(r.Omitted)
	t.values, t.at, t.reporting, t.err = values, time.Now(), true, ""
}

// Counts returns what the collector has done.
func (c *Collector) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.counts
	out.Services, out.Endpoints = len(c.services), len(c.targets)
	for t := range maps.Values(c.targets) {
		if t.reporting {
			out.Streams++
		}
	}
	return out
}
