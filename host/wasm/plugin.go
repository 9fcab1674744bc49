package wasm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Plugin is a loaded module with its settings. It implements policy.Plugin. It is safe for concurrent use; calls are
// serialized.
type Plugin struct {
	host         *Host
	limits       Limits
	options      LoadOptions
	settings     []byte
	configurable bool
	log          *slog.Logger
	report       Report

	mu       sync.Mutex
	ctx      context.Context
	code     *code
	guest    *guest // of the current or last call; nil: none
	pool     pool
	repeats  repeats
	impure   *ImpureError // has suspended the plugin
	decoder  abi.Decoder
	closed   bool
	breakers circuitBreakers
	now      int64 // of the last request
	logLimit logLimiter

	newInstances instanceRate

	calls, failures, instances uint64
	outOfFuel, late            uint64
	fuel, lastFuel, maxFuel    uint64
	initFuel                   int64
}

// Stats contains counters of a plugin since it was loaded.
type Stats struct {
	Calls       uint64 // of Decide, except while suspended
	Failures    uint64 // failed calls, of which …
	OutOfFuel   uint64 // … used up their fuel
	Late        uint64 // … used up their CPU time
	Instances   uint64 // guests instantiated
	Fuel        uint64 // used by all calls
	LastFuel    uint64 // used by the last call
	MaxFuel     uint64 // used by the most expensive call
	LogDropped  uint64 // lines dropped by the log limits
	MemoryBytes uint64 // host memory of all current instances
	Open        int    // current instances
	Evicted     uint64 // instances that were closed to make room for others
	HostBytes   uint64 // what the plugin takes of Options.Memory: its share of compiled code and tables, memory of the instances
	Suspended   bool   // calls fail without reaching a guest
	Repeats     Repeats
}

// DecideError is the error of Plugin.Decide. It does not name the plugin; the caller does.
type DecideError struct {
	Failures   uint64        // so far
	Suspended  bool          // the plugin was not called
	RetryAfter time.Duration // earlier calls fail too; 0 while suspended: all calls do
	Err        error
}

// Error implements error.
func (e *DecideError) Error() string {
	if e.Suspended && e.RetryAfter == 0 {
		return fmt.Sprintf("suspended until another revision is loaded: %v", e.Err)
	}
	if e.Suspended {
		return fmt.Sprintf("suspended for another %s after %d failures; the last one: %v", e.RetryAfter, e.Failures, e.Err)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *DecideError) Unwrap() error { return e.Err }

// ErrClosed is the error of Decide after Close.
var ErrClosed = errors.New("the plugin is closed")

// Decide implements policy.Plugin. Its error is a *DecideError.
func (p *Plugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decide(req, resp)
}

func (p *Plugin) decide(req *abi.Request, resp *abi.Response) error {
	if p.closed {
		return &DecideError{Failures: p.failures, Err: ErrClosed}
	}
	if p.impure != nil {
		return p.impureError(req)
	}
	p.now = req.Now
	key := p.options.key(req)
	breaker := p.breakers[key.namespace]
	if wait := breaker.remaining(req.Now); wait > 0 {
		return &DecideError{Failures: p.failures, Suspended: true, RetryAfter: wait, Err: breaker.lastErr}
	}
	p.logLimit.refill(req.Now, p.limits.LogPerSecond)
	if (p.guest == nil || p.guest.key != key) && p.pool.guests[key] == nil {
		if wait := p.newInstances.wait(req.Now, p.limits.InstancesPerSecond); wait > 0 {
			return &DecideError{Failures: p.failures, Suspended: true, RetryAfter: wait, Err: errInstances}
		}
	}
	p.calls++
	var used uint64
	g, err := p.instance(key)
	if err == nil {
		err = g.callDecide(&p.decoder, req, resp)
		used = uint64(max(0, g.fuelUsed))
	}
	p.fuel += used
	p.lastFuel = used
	p.maxFuel = max(p.maxFuel, used)
	if err == nil {
		if p.impure = p.repeat(key.namespace, req, resp, int64(used)); p.impure != nil {
			p.failures++
			p.dropAll()
			p.log.Error("plugin suspended until another revision is loaded: it is not a function of its request", "err", p.impure)
			return p.impureError(req)
		}
		p.breakers.success(key.namespace)
		p.trim(g)
		return nil
	}
	p.failures++
	switch {
	case errors.Is(err, errNoFuel):
		p.outOfFuel++
	case errors.Is(err, errLate):
		p.late++
	}
	if g != nil {
		p.drop(g)
	}
	breaker = p.breakers.of(key.namespace, req.Now)
	wait := breaker.failure(req.Now, p.limits.Failures, err)
	if breaker.openUntil != 0 {
		p.log.Warn("plugin suspended", "duration", wait, "failures", p.failures, "err", err)
	}
	return &DecideError{Failures: p.failures, RetryAfter: wait, Err: err}
}

// ensureGuest instantiates a guest for the self-test if there is none.
func (p *Plugin) ensureGuest() error {
	if p.guest != nil {
		return nil
	}
	_, err := p.newGuest(instanceKey{})
	return err
}

// discard closes the current guest, which is not in the pool.
func (p *Plugin) discard() {
	if p.guest != nil {
		p.guest.close()
		p.guest = nil
	}
}

// handshake instantiates the first guest, which has to introduce itself, and runs the self-test. Afterwards the plugin
// has a new guest, unless each namespace has its own.
func (p *Plugin) handshake(ctx context.Context, now func() time.Time) error {
	p.ctx = p.host.ctx
	begin := now()
	g, err := p.newGuest(instanceKey{})
	if err != nil {
		return err
	}
	p.report.Instantiate = now().Sub(begin)
	p.report.InitFuel = p.initFuel
	p.report.MemoryBytes = g.measure().total()
	begin = now()
	if err := p.selfTest(ctx); err != nil {
		return err
	}
	p.report.SelfTest.Duration = now().Sub(begin)
	*p = Plugin{host: p.host, limits: p.limits, settings: p.settings, configurable: p.configurable, log: p.log,
		report: p.report, ctx: p.ctx, code: p.code, options: p.options,
		pool: pool{limit: p.options.Instances}, repeats: p.newRepeats()}
	if p.options.PerNamespace {
		return nil
	}
	_, err = p.instance(instanceKey{})
	return err
}

// Needs implements policy.Plugin.
func (p *Plugin) Needs() uint32 { return p.report.Needs }

// Keys implements policy.Plugin.
func (p *Plugin) Keys() []string { return p.report.Keys }

// Revision implements policy.Plugin: a digest of module, settings and ABI.
func (p *Plugin) Revision() string { return p.report.Revision }

// Report returns what loading found.
func (p *Plugin) Report() Report { return p.report }

// Stats returns the counters.
func (p *Plugin) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Calls: p.calls, Failures: p.failures, OutOfFuel: p.outOfFuel, Late: p.late, Instances: p.instances, Fuel: p.fuel, LastFuel: p.lastFuel,
		MaxFuel: p.maxFuel, LogDropped: p.logLimit.dropped, Suspended: p.breakers.open(p.now) || p.impure != nil,
		Open: len(p.pool.guests), Evicted: p.pool.evicted, MemoryBytes: p.pool.memoryBytes(), Repeats: p.repeats.stats,
		HostBytes: p.host.codeBytes(p.code) + p.pool.memoryBytes()}
	return s
}

// Close waits for a running Decide and releases all resources. Decide then returns an error.
func (p *Plugin) Close() error {
	p.host.unregister(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAll()
	p.closed = true
	if p.code == nil {
		return nil
	}
	c := p.code
	p.code = nil
	return p.host.release(c)
}
