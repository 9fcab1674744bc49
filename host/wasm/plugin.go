package wasm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Plugin is one loaded module with its settings: a policy.Plugin. It is safe for use by several goroutines, which it
// serves one after another.
type Plugin struct {
	host         *Host
	limits       Limits
	settings     []byte
	configurable bool
	log          *slog.Logger
	report       Report

	mu       sync.Mutex
	ctx      context.Context
	runtime  wazero.Runtime
	cache    wazero.CompilationCache
	compiled wazero.CompiledModule
	guest    *guest // nil: the next call makes one
	decoder  abi.Decoder
	closed   bool
	breaker  circuitBreaker
	logLimit logLimiter

	calls, failures, instances uint64
	fuel, lastFuel, maxFuel    uint64
	initFuel                   int64
}

// Stats counts what a plugin did since it was loaded.
type Stats struct {
	Calls       uint64 // of Decide that reached a guest
	Failures    uint64 // of those
	Instances   uint64 // guests made, the present one included
	Fuel        uint64 // used by all calls
	LastFuel    uint64 // by the last one
	MaxFuel     uint64 // by the dearest one
	LogDropped  uint64 // lines that went over the limits
	MemoryBytes uint32 // of the present guest, 0 when there is none
	Suspended   bool   // since its last failure, until a request of a later time
}

// DecideError is why a plugin gave no answer. It does not name the plugin: the caller knows which one it asked.
type DecideError struct {
	Failures   uint64        // so far
	Suspended  bool          // it was not even asked
	RetryAfter time.Duration // asking earlier than this is of no use
	Err        error
}

// Error gives the reason.
func (e *DecideError) Error() string {
	if e.Suspended {
		return fmt.Sprintf("suspended for another %s after %d failures, the last: %v", e.RetryAfter, e.Failures, e.Err)
	}
	return e.Err.Error()
}

// Unwrap gives the reason alone.
func (e *DecideError) Unwrap() error { return e.Err }

// Decide implements policy.Plugin. An error is a *DecideError.
func (p *Plugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decide(req, resp)
}

func (p *Plugin) decide(req *abi.Request, resp *abi.Response) error {
	if p.closed {
		return &DecideError{Failures: p.failures, Err: errors.New("it is closed")}
	}
	if wait := p.breaker.remaining(req.Now); wait > 0 {
		return &DecideError{Failures: p.failures, Suspended: true, RetryAfter: wait, Err: p.breaker.lastErr}
	}
	p.logLimit.refill(req.Now, p.limits.LogPerSecond)
	if p.guest != nil && p.guest.encoder.Full() {
		p.discard()
	}
	p.calls++
	var used uint64
	err := p.ensureGuest()
	if err == nil {
		g := p.guest
		err = g.callDecide(&p.decoder, req, resp)
		used = uint64(max(0, g.fuelUsed))
	}
	p.fuel += used
	p.lastFuel = used
	p.maxFuel = max(p.maxFuel, used)
	if err == nil {
		p.breaker.success()
		return nil
	}
	p.failures++
	p.discard()
	wait := p.breaker.failure(req.Now, p.limits.Failures, err)
	if p.breaker.openUntil != 0 {
		p.log.Warn("plugin is suspended", "for", wait, "failures", p.failures, "error", err)
	}
	return &DecideError{Failures: p.failures, RetryAfter: wait, Err: err}
}

// ensureGuest makes a guest when there is none.
func (p *Plugin) ensureGuest() error {
	if p.guest != nil {
		return nil
	}
	_, err := p.newGuest()
	return err
}

func (p *Plugin) discard() {
	if p.guest != nil {
		p.guest.close()
		p.guest = nil
	}
}

// handshake makes the first guest, asks it who it is, and tries the plugin on Samples in two guests, which must agree.
// Afterwards there is a fresh one.
func (p *Plugin) handshake(ctx context.Context, now func() time.Time) error {
	p.ctx = p.host.ctx
	begin := now()
	g, err := p.newGuest()
	if err != nil {
		return err
	}
	p.report.Instantiate = now().Sub(begin)
	p.report.InitFuel = p.initFuel
	p.report.MemoryBytes = g.memory.Size()
	if p.report.ABI, err = g.callU32("sluice_abi_version"); err != nil {
		return err
	}
	if major := p.report.ABI >> 16; major != abi.Major {
		return fmt.Errorf("module refused: it speaks ABI %d.%d, this host %d.%d: build it anew with the SDK of this host",
			major, p.report.ABI&0xffff, abi.Major, abi.Minor)
	}
	if g.module.ExportedFunction("sluice_needs") != nil {
		if p.report.Needs, err = g.callU32("sluice_needs"); err != nil {
			return err
		}
		if err := checkNeeds(p.report.Needs); err != nil {
			return err
		}
	}
	if p.report.ABI&0xffff == 0 { // ABI 1.0 gave the zones' Nodes unasked
		p.report.Needs |= abi.NeedNodes
	}
	if err := p.selfTest(ctx); err != nil {
		return err
	}
	*p = Plugin{host: p.host, limits: p.limits, settings: p.settings, configurable: p.configurable, log: p.log,
		report: p.report, ctx: p.ctx, runtime: p.runtime, cache: p.cache, compiled: p.compiled}
	return p.ensureGuest()
}

// checkNeeds refuses the inputs that this host does not provide. A plugin that was loaded all the same would decide on
// missing data.
func checkNeeds(needs uint32) error {
	if unknown := needs &^ abi.AllNeeds; unknown != 0 {
		return fmt.Errorf("module refused: sluice_needs asks for unknown inputs: bits %#x", unknown)
	}
	if needs&abi.NeedConnections != 0 {
		return fmt.Errorf("module refused: sluice_needs asks for connection counts (bit %#x): reserved, this host does not provide them", abi.NeedConnections)
	}
	if needs&abi.NeedMetadata != 0 {
		return fmt.Errorf("module refused: sluice_needs asks for Pod labels and annotations (bit %#x): reserved, this host does not provide them", abi.NeedMetadata)
	}
	return nil
}

func (p *Plugin) selfTest(ctx context.Context) error {
	samples := Samples()
	first := make([]abi.Response, len(samples))
	for round := range 2 {
		for i, s := range samples {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("self-test: %w", err)
			}
			var again abi.Response
			resp := &again
			if round == 0 {
				resp = &first[i]
			}
			err := p.ensureGuest()
			if err == nil {
				resp.Reset(len(s.Request.Endpoints))
				err = p.guest.callDecide(&p.decoder, s.Request.Restricted(p.report.Needs), resp)
			}
			if err != nil {
				return fmt.Errorf("self-test: sample request %q: %w", s.Name, err)
			}
			if round == 1 {
				if diff := diffResponses(&first[i], &again); diff != "" {
					return fmt.Errorf("self-test: sample request %q: two instances answer differently (%s): a plugin must be a function of its request", s.Name, diff)
				}
			}
		}
		p.discard()
	}
	return nil
}

// diffResponses tells where two answers differ.
func diffResponses(a, b *abi.Response) string {
	for i := range a.Results {
		if a.Results[i] != b.Results[i] {
			return fmt.Sprintf("endpoint %d: %+v and %+v", i, a.Results[i], b.Results[i])
		}
	}
	switch {
	case a.RequeueAfter != b.RequeueAfter:
		return fmt.Sprintf("requeue %s and %s", a.RequeueAfter, b.RequeueAfter)
	case a.Balance != b.Balance:
		return fmt.Sprintf("balance %d and %d", a.Balance, b.Balance)
	case !reflect.DeepEqual(append([]byte{}, a.State...), append([]byte{}, b.State...)):
		return "state"
	}
	return ""
}

// Needs implements policy.Plugin.
func (p *Plugin) Needs() uint32 { return p.report.Needs }

// Revision implements policy.Plugin: a digest of module, settings and ABI.
func (p *Plugin) Revision() string { return p.report.Revision }

// Report says what loading found.
func (p *Plugin) Report() Report { return p.report }

// Stats gives the counts so far.
func (p *Plugin) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Calls: p.calls, Failures: p.failures, Instances: p.instances, Fuel: p.fuel, LastFuel: p.lastFuel,
		MaxFuel: p.maxFuel, LogDropped: p.logLimit.dropped, Suspended: p.breaker.openUntil != 0}
	if p.guest != nil {
		s.MemoryBytes = p.guest.memory.Size()
	}
	return s
}

// Close frees everything, once a Decide under way has ended. Decide answers an error from now on.
func (p *Plugin) Close() error {
	p.host.unregister(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discard()
	p.closed = true
	ctx := context.Background()
	var errs []error
	if p.runtime != nil {
		errs = append(errs, p.runtime.Close(ctx))
	}
	if p.cache != nil {
		errs = append(errs, p.cache.Close(ctx))
	}
	p.runtime, p.cache, p.compiled = nil, nil, nil
	return errors.Join(errs...)
}
