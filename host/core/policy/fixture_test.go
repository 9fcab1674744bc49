package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// fakePlugin is a plugin whose answer is a function, and which counts its calls.
type fakePlugin struct {
	decide   func(*abi.Request, *abi.Response) error
	revision string
	role     abi.Role // 0: RoleShare
	calls    int
}

func (s *fakePlugin) Decide(req *abi.Request, resp *abi.Response) error {
	s.calls++
	return s.decide(req, resp)
}

func (s *fakePlugin) Needs(string) uint32 { return 0 }

func (*fakePlugin) Keys(string) []string { return nil }

func (*fakePlugin) Counters() []string { return []string{"first", "second"} }

func (s *fakePlugin) Role() abi.Role { return cmp.Or(s.role, abi.RoleShare) }

func (s *fakePlugin) Revision() string { return s.revision }

// favorFirst gives the first endpoint that gets connections w times the share of the others, whatever the plugins before; 0: no
// endpoint gets any.
func favorFirst(w uint32) func(*abi.Request, *abi.Response) error {
	return func(req *abi.Request, resp *abi.Response) error {
		w, others := w*abi.One, min(w, 1)*abi.One
		for i := range req.Endpoints {
			if e := &req.Endpoints[i]; e.Capacity > 0 && e.Share > 0 {
				resp.Results[i].Value, w = w, others
			}
		}
		return nil
	}
}

func failDecide(*abi.Request, *abi.Response) error { return errors.New("out of fuel") }

// fixture is a chain of plugins over a Service port.
type fixture struct {
	plugins   map[string]Plugin
	evaluator *Evaluator
	policy    *Policy
	in        Input
	now       time.Time
	late      *lateCaller // nil: plugins answer at once
}

func newFixture(plugins ...*fakePlugin) *fixture {
	b := &fixture{plugins: map[string]Plugin{}, policy: &Policy{Name: "p"}, now: time.Unix(1000, 0)}
	for i, p := range plugins {
		name := fmt.Sprint("plugin", i)
		b.plugins[name] = p
		b.policy.Steps = append(b.policy.Steps, Step{Plugin: name})
	}
	b.evaluator = NewEvaluator(func(name string) (Plugin, error) {
		if p := b.plugins[name]; p != nil {
			return p, nil
		}
		return nil, fmt.Errorf("no plugin %q is loaded", name)
	})
	b.set(3, 0)
	return b
}

// shadow gives the policy a shadow of plugins of its own.
func (b *fixture) shadow(plugins ...*fakePlugin) {
	b.policy = b.policy.clone()
	b.policy.Shadow = nil
	for i, p := range plugins {
		name := ShadowPlugin(fmt.Sprint("plugin", i))
		b.plugins[name] = p
		b.policy.Shadow = append(b.policy.Shadow, Step{Plugin: name})
	}
}

// set sets the numbers of ready and terminating endpoints.
func (b *fixture) set(ready, terminating int) {
	p := &eligibility.Port{
		Name:   model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP},
		Family: model.IPv4, UsesCluster: true,
	}
	for i := range ready + terminating {
		p.Endpoints = append(p.Endpoints, eligibility.Endpoint{
			Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80),
			Ready: i < ready, Serving: true, Terminating: i >= ready, InCluster: i < ready || ready == 0,
		})
	}
	b.in = Input{Service: &model.Service{Name: p.Name.Service}, Port: p}
}

func (b *fixture) decide() (Decision, time.Time) {
	if b.late == nil || b.late.immediate {
		return b.evaluator.DecideNow(b.policy, &b.in, b.now)
	}
	b.late.retry(b.evaluator)
	d, at := b.evaluator.Decide(b.policy, &b.in, b.now)
	b.late.take(b.evaluator.Calls())
	return d, at
}

func (b *fixture) expect(t *testing.T, what string, from Origin, weights ...uint16) Decision {
	t.Helper()
	d, _ := b.decide()
	if d.Origin != from || !slices.Equal(d.Weights, weights) {
		t.Fatalf("%s: got %v from %v (%v), want %v from %v", what, d.Weights, d.Origin, d.Err, weights, from)
	}
	return d
}
