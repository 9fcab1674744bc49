package wasm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// Plugin is a loaded module, for any number of settings. It implements policy.Plugin. It is safe for concurrent use; calls are
// serialized.
type Plugin struct {
	host         *Host
	limits       Limits
	options      LoadOptions
	configurable bool
	log          *slog.Logger
	report       Report
	engine       engine // that of code

	mu       sync.Mutex
	ctx      context.Context
	code     *code
	guest    *guest // of the current or last call; nil: none
	together *together
	pool     pool
	repeats  repeats
	impure   *ImpureError // has suspended the plugin
	decoder  abi.Decoder
	closed   bool
	breakers breakers
	now      int64 // of the last request
	logLimit logLimiter
	warnings logLimiter // of suspended groups

	newInstances instanceRate
	declared     declared
	verdicts     verdicts
	trials       trials
	triedAt      int64 // time of the last trial

	callsAtRelease uint64 // see ReleaseIdle

	calls, failures, instances uint64
	messages                   uint64
	outOfFuel, late            uint64
	fuel, lastFuel, maxFuel    uint64
	initFuel                   int64
	configured, recycled       uint64
	accepted, refused          uint64
	throttled                  uint64

	asked atomic.Bool           // Stats has been called during a call
	stats atomic.Pointer[Stats] // that were published last
}

// Stats contains counters of a plugin since it was loaded.
type Stats struct {
	Calls       uint64 // of Decide, except while suspended
	Messages    uint64 // with these calls: several may be made together
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
	Suspended   Suspensions
	Repeats     Repeats
	Settings    SettingsStats
}

// SettingsStats contains counters of settings.
type SettingsStats struct {
	Handles    int    // in all current instances
	Configured uint64 // settings passed to an instance that decides
	Recycled   uint64 // instances replaced by one with fewer settings
	Accepted   uint64 // settings of Services tried for the first time, …
	Refused    uint64 // … that the plugin refuses
	Throttled  uint64 // calls that failed because new settings of Services had used up their fuel
}

// DecideError is the error of Plugin.Decide. It does not name the plugin; the caller does.
type DecideError struct {
	Failures   uint64        // so far: of the Service port if it is suspended, or else of the plugin
	Suspended  bool          // the plugin was not called
	RetryAfter time.Duration // earlier calls fail too; 0 while suspended: all calls do
	Err        error
}

// Error implements error.
func (e *DecideError) Error() string {
	if e.Suspended && e.RetryAfter == 0 && errors.Is(e.Err, abi.ErrSettings) {
		return e.Err.Error()
	}
	if e.Suspended && e.RetryAfter == 0 {
		return fmt.Sprintf("suspended until another revision is loaded: %v", e.Err)
	}
	if e.Suspended && e.Failures > 0 {
		return fmt.Sprintf("suspended for this Service port for another %s after %d failures; the last one: %v", e.RetryAfter, e.Failures, e.Err)
	}
	if e.Suspended {
		return fmt.Sprintf("suspended for another %s: %v", e.RetryAfter, e.Err)
	}
	return e.Err.Error()
}

// Retry implements policy.RetryError.
func (e *DecideError) Retry() time.Duration { return e.RetryAfter }

// Unwrap returns the cause.
func (e *DecideError) Unwrap() error { return e.Err }

// ErrClosed is the error of Decide after Close.
var ErrClosed = errors.New("the plugin is closed")

// Decide implements policy.Plugin. Its error is a *DecideError.
func (p *Plugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.mu.Lock()
	defer p.unlock()
	return p.decide(req, resp)
}

func (p *Plugin) decide(req *abi.Request, resp *abi.Response) error {
	key := p.options.key(req)
	if err := p.admit(key, req); err != nil {
		return err
	}
	p.calls++
	p.messages++
	p.code.alone.RLock()
	g, err := p.call(key, req, resp)
	p.code.alone.RUnlock()
	if err != nil && isUnclear(err) && p.host.shares(p.code) {
		p.code.alone.Lock() // whoever ends the process then is guilty
		resp.Reset(len(req.Endpoints))
		g, err = p.call(key, req, resp)
		p.code.alone.Unlock()
	}
	return p.finish(key, g, req, resp, err)
}

// call makes a call, and returns the instance that was called; nil: none.
func (p *Plugin) call(key instanceKey, req *abi.Request, resp *abi.Response) (*guest, error) {
	g, h, err := p.prepare(key, req)
	if err == nil {
		return g, g.callDecide(&p.decoder, req, h, resp)
	}
	if g != nil {
		g.fuelUsed = 0
	}
	return g, err
}

// admit returns why a request is not for an instance; nil: it is.
func (p *Plugin) admit(key instanceKey, req *abi.Request) error {
	if p.closed {
		return &DecideError{Failures: p.failures, Err: ErrClosed}
	}
	if p.impure != nil {
		return p.impureError(req)
	}
	p.now = req.Now
	if req.Settings.Own {
		if err, _ := p.verdicts.of(&req.Settings); err != nil {
			return &DecideError{Failures: p.failures, Suspended: true, Err: err}
		}
	}
	if err := p.suspended(key, req); err != nil {
		return err
	}
	p.logLimit.refill(req.Now, p.limits.LogPerSecond)
	if (p.guest == nil || p.guest.key != key) && p.pool.guests[key] == nil {
		if wait := p.newInstances.wait(req.Now, p.limits.InstancesPerSecond); wait > 0 {
			return &DecideError{Suspended: true, RetryAfter: wait, Err: errInstances}
		}
	}
	return nil
}

// suspended returns why a request is not for an instance because of failures; nil: it is.
func (p *Plugin) suspended(key instanceKey, req *abi.Request) error {
	if p.breakers.idle() {
		return nil
	}
	s := p.scopeOf(key, req)
	if err := p.breakers.suspended(&s, req.Now); err != nil {
		return err
	}
	return nil
}

// finish counts a call of g, repeats it if that is due, and returns its error as that of Decide. g is nil if no instance has been
// called.
func (p *Plugin) finish(key instanceKey, g *guest, req *abi.Request, resp *abi.Response, err error) error {
	var used uint64
	if g != nil {
		used = uint64(max(0, g.fuelUsed))
	}
	p.fuel += used
	p.lastFuel = used
	p.maxFuel = max(p.maxFuel, used)
	if err == nil {
		if impure := p.repeat(key.namespace, req, resp, int64(used)); impure != nil {
			p.failures++
			p.dropAll()
			if req.Settings.Own { // with the settings of the policy it may be one
				refused := refusal(fmt.Errorf("with these settings, the plugin is not a function of its request: %w", impure))
				p.verdicts.record(&req.Settings, refused)
				p.log.Error("settings of a Service refused: with them, the plugin is not a function of its request", "err", impure)
				return &DecideError{Failures: p.failures, Suspended: true, Err: refused}
			}
			p.impure = impure
			p.log.Error("plugin suspended until another revision is loaded: it is not a function of its request", "err", p.impure)
			return p.impureError(req)
		}
		if !p.breakers.idle() {
			s := p.scopeOf(key, req)
			p.breakers.success(&s)
		}
		p.dropTrials()
		return nil
	}
	var wait *throttledError
	switch {
	case errors.Is(err, abi.ErrSettings): // the instance that decides has not been called
		return &DecideError{Failures: p.failures, Suspended: true, Err: err}
	case errors.As(err, &wait):
		return &DecideError{Suspended: true, RetryAfter: wait.wait, Err: err}
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
	scope := p.scopeOf(key, req)
	retry, tripped := p.breakers.failure(&scope, req.Now, p.limits.Failures, err)
	for p.warnings.refill(req.Now, 1); len(tripped) > 0 && p.warnings.allow(); tripped = tripped[1:] {
		id := tripped[0]
		g := p.breakers.groups[id]
		p.log.Warn("plugin suspended: "+[levels]string{"several Services of a namespace have failed with the same settings", "several settings have failed in a namespace",
			"several namespaces have failed with the same settings", "several namespaces have failed with different settings"}[id.level],
			"duration", g.remaining(req.Now, 0), "failed", g.names(), "err", err)
	}
	// A trial that fails leaves the instance that decides as it is: other calls need not wait for a new one.
	return &DecideError{Failures: p.failures, Suspended: g == nil && req.Settings.Own, RetryAfter: retry, Err: err}
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

// handshake instantiates the first guest, and reads its ABI version. said is the manifest, or unsaid is why there is none.
func (p *Plugin) handshake(now func() time.Time, said *manifest.Manifest, unsaid error) error {
	p.ctx = p.host.ctx
	begin := now()
	g, err := p.newGuest(instanceKey{})
	if err != nil {
		return err
	}
	p.report.Instantiate = now().Sub(begin)
	p.report.InitFuel = p.initFuel
	p.report.MemoryBytes = uint64(g.in.hostBytes())
	return g.introduce(said, unsaid)
}

// Start makes the first instance, so that a plugin that does not fit into the memory of all plugins fails here. Without an
// instance for all namespaces it does nothing.
func (p *Plugin) Start(ctx context.Context) error {
	if p.options.PerNamespace {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.host.retryAfterCompile(ctx, func() error {
		_, err := p.instance(instanceKey{})
		return err
	})
}

// scratch returns a plugin with the same module, for a self-test beside calls of p. Close it with discard.
func (p *Plugin) scratch() *Plugin {
	return &Plugin{host: p.host, limits: p.limits, configurable: p.configurable, log: p.log, report: p.report, ctx: p.ctx, code: p.code,
		options: p.options, verdicts: verdicts{}, pool: pool{limit: p.options.Instances}, repeats: p.newRepeats()}
}

// Check tests the plugin with settings, a JSON object or "" for none: it configures instances of their own, and runs the
// self-test on Samples. Calls of p go on meanwhile. The error is written for the author of module and settings.
func (p *Plugin) Check(ctx context.Context, settings string) (SelfTest, error) {
	if len(settings) > p.limits.Settings {
		return SelfTest{}, fmt.Errorf("settings: %d bytes, the limit is %d", len(settings), p.limits.Settings)
	}
	if settings != "" && !json.Valid([]byte(settings)) {
		return SelfTest{}, errors.New("settings: invalid JSON")
	}
	if err := p.checkSchema(settings); err != nil {
		return SelfTest{}, err
	}
	q := p.scratch()
	begin := p.host.now()
	err := p.host.retryAfterCompile(ctx, func() error {
		q.discard()
		q.report.SelfTest = SelfTest{}
		return q.selfTest(ctx, settings)
	})
	q.discard()
	q.code.engine.forget()
	q.report.SelfTest.Duration = p.host.now().Sub(begin)
	if err == nil {
		p.declared.set(settings, q.declared.of(settings))
	}
	return q.report.SelfTest, err
}

// Reset closes all instances and forgets failures and limits of rates, as a new process would have it. Counters, and what Check
// has found, stay.
func (p *Plugin) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAll()
	p.breakers, p.impure, p.newInstances, p.logLimit, p.repeats = breakers{}, nil, instanceRate{}, logLimiter{}, p.newRepeats()
}

// Needs implements policy.Plugin: the needs that Check has found. It does not wait for a running Decide.
func (p *Plugin) Needs(settings string) uint32 { return p.declared.of(settings).needs }

// Keys implements policy.Plugin: the keys that Check has found. It does not wait for a running Decide.
func (p *Plugin) Keys(settings string) []string { return p.declared.of(settings).keys }

// Role implements policy.Plugin: the role that the module has declared.
func (p *Plugin) Role() abi.Role { return p.report.Role }

// Counters implements policy.Plugin: the names in the manifest.
func (p *Plugin) Counters() []string { return p.report.Counters }

// Revision implements policy.Plugin: a digest of module and ABI.
func (p *Plugin) Revision() string { return p.report.Revision }

// Report returns what loading found.
func (p *Plugin) Report() Report { return p.report }

// Stats returns the counters. While a call is running, they are those from when Stats was last called, or from the call after
// that.
func (p *Plugin) Stats() Stats {
	if !p.mu.TryLock() {
		p.asked.Store(true)
		return *cmp.Or(p.stats.Load(), &Stats{})
	}
	defer p.mu.Unlock()
	return p.publish()
}

// unlock ends a call.
func (p *Plugin) unlock() {
	if p.asked.Load() {
		p.publish()
	}
	p.mu.Unlock()
}

// publish returns the counters, and stores them for callers of Stats that do not wait.
func (p *Plugin) publish() Stats {
	p.asked.Store(false)
	s := Stats{Calls: p.calls, Messages: p.messages, Failures: p.failures, OutOfFuel: p.outOfFuel, Late: p.late, Instances: p.instances, Fuel: p.fuel, LastFuel: p.lastFuel,
		MaxFuel: p.maxFuel, LogDropped: p.logLimit.dropped, Suspended: p.breakers.suspensions(p.now),
		Open: len(p.pool.guests), Evicted: p.pool.evicted, MemoryBytes: p.pool.memoryBytes(), Repeats: p.repeats.stats,
		HostBytes: p.host.codeBytes(p.code) + p.pool.memoryBytes(),
		Settings:  SettingsStats{Configured: p.configured, Recycled: p.recycled, Accepted: p.accepted, Refused: p.refused, Throttled: p.throttled}}
	if p.impure != nil {
		s.Suspended.Modules = 1
	}
	for _, g := range p.pool.guests {
		s.Settings.Handles += len(g.ids)
	}
	p.stats.Store(&s)
	return s
}

// ProcessCPU returns the CPU time of the process that runs the plugin, and those before it; 0 without Options.Process.
func (p *Plugin) ProcessCPU() time.Duration {
	if e, ok := p.engine.(interface{ cpuTime() time.Duration }); ok {
		return e.cpuTime()
	}
	return 0
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
