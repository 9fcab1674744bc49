package engine_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// signalsPlugin gives each endpoint the weight 1 and records requests.
type signalsPlugin struct {
	policytest.Plugin
	mu   sync.Mutex
	seen []abi.Request
	at   []time.Time
}

func (p *signalsPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := *req
	r.Endpoints = slices.Clone(req.Endpoints)
	p.seen, p.at = append(p.seen, r), append(p.at, time.Now())
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	return nil
}

// calls returns how often the plugin was called, and the last request.
func (p *signalsPlugin) calls() (n int, last abi.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) > 0 {
		last = p.seen[len(p.seen)-1]
	}
	return len(p.seen), last
}

// countingBackend is a fake backend whose readings can take long or fail. It checks that no calls overlap that must not.
type countingBackend struct {
	*fake.Backend
	t *testing.T

	mu      sync.Mutex
	busy    bool
	reading bool
	took    time.Duration // of a reading
	fail    error
	reads   int
}

func (b *countingBackend) enter() func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		b.t.Error("calls of the backend overlap")
	}
	b.busy = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.busy = false
	}
}

func (b *countingBackend) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	defer b.enter()()
	return b.Backend.Apply(ctx, p, d)
}

func (b *countingBackend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	b.mu.Lock()
	if b.reading {
		b.t.Error("readings overlap")
	}
	b.reading = true
	b.reads++
	took, fail := b.took, b.fail
	b.mu.Unlock()
	defer b.set(func() { b.reading = false })
	if took > 0 {
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	return b.Backend.ReadOutcomes(context.WithoutCancel(ctx))
}

func (b *countingBackend) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *countingBackend) readings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads
}

// eventLine is the line of a recorder for an event.
func eventLine(kind engine.EventKind, failed bool) string {
	return fmt.Sprintf("event %d failed %t", kind, failed)
}

func endpointKey(last byte) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, last}), 8080), Protocol: model.TCP}
}

func startSignals(t *testing.T, p *signalsPlugin, change func(*rig)) (*rig, *countingBackend) {
	k := fake.NewKernel(fake.Options{Now: time.Now})
	r := newRig(t, k)
	r.signalsPeriod = time.Second
	r.observer = &recorder{}
	if change != nil {
		change(r)
	}
	b := &countingBackend{Backend: fake.Open(k), t: t}
	r.run(b, p, false)
	t.Cleanup(r.end)
	r.emit(svc(), eps(1, 2), synced)
	return r, b
}

// connect makes connections through the Service.
func (r *rig) connect(n int) {
	for range n {
		r.kernel.Connect(fake.Packet{From: netip.MustParseAddrPort("10.244.9.9:0"), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP})
	}
}
