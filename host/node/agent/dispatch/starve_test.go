package dispatch

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// requeuePlugin takes a time, and wants to be called again a second later.
type requeuePlugin struct {
	idlePlugin
	took  time.Duration
	mu    sync.Mutex
	calls map[model.Name]int
}

func (p *requeuePlugin) called() map[model.Name]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.calls)
}

func (p *requeuePlugin) Decide(req *abi.Request, resp *abi.Response) error {
	time.Sleep(p.took)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[model.Name{Namespace: req.Namespace, Name: req.Service}]++
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	resp.RequeueAfter = time.Second
	return nil
}

// portedService is a Service with an endpoint.
func portedService(name model.Name, addr netip.Addr, ports int) []model.Change {
	svc := &model.Service{Name: name, ClusterIPs: []netip.Addr{addr}}
	s := &model.EndpointSlice{Name: name, Service: name, Family: model.IPv4,
		Endpoints: []model.SliceEndpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}}}
	for i := range ports {
		port := fmt.Sprint("p", i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(80 + i)})
		s.Ports = append(s.Ports, model.SlicePort{Name: port, Protocol: model.TCP, Port: 8080})
	}
	return []model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}, {Kind: model.SliceKind, Name: name, Slice: s}}
}

// TestNoServiceStarvesWhileCallsAreRefused: one Service has more ports than its namespace has room, and another namespace has
// many Services. More calls come due in a second than are answered.
func TestNoServiceStarvesWhileCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, ports = 900, 300
		b, plugin := newBed(t, 0, 1), &requeuePlugin{took: 2 * time.Millisecond, calls: map[model.Name]int{}}
		chain := &policy.Policy{Name: "p", Steps: []policy.Step{{Plugin: "p"}}}
		p := planner.New(planner.Settings{Node: "n0", Policies: &policy.Set{Policies: map[string]*policy.Policy{"p": chain}, Default: "p"}},
			func(string) (policy.Plugin, error) { return plugin, nil })
		p.PlanInBatches()
		var changes []model.Change
		for i := range services {
			name := model.Name{Namespace: "crowd", Name: fmt.Sprintf("s%03d", i)}
			changes = append(changes, portedService(name, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 1)...)
		}
		large, lone := model.Name{Namespace: "large", Name: "large"}, model.Name{Namespace: "shop", Name: "lone"}
		changes = append(changes, portedService(large, netip.MustParseAddr("10.97.0.1"), ports)...)
		changes = append(changes, portedService(lone, netip.MustParseAddr("10.97.0.2"), 1)...)
		p.Apply(append(changes, model.Change{Kind: model.Synced}))
		begin := time.Now()
		for steps := 0; time.Since(begin) < 20*time.Second; steps++ {
			now := time.Now()
			p.Deliver(b.call(0), now)
			for result := p.Plan(now); len(result.Calls) > 0; result = p.Plan(now) {
				p.Deliver(b.call(0, result.Calls...), now)
			}
			if time.Sleep(20 * time.Millisecond); steps == 50 && plugin.called()[lone] == 0 {
				t.Error("a Service waits for all Services of another namespace")
			}
		}
		synctest.Wait()
		calls := plugin.called()
		for name, n := range calls {
			if n < 2 {
				t.Errorf("%d calls for %s", n, name)
			}
		}
		if len(calls) != services+2 || calls[lone] < 10 || calls[large] < 2*ports {
			t.Errorf("calls for %d of %d Services, %d for the lone one, %d for the large one", len(calls), services+2, calls[lone], calls[large])
		}
		for _, name := range p.ServiceNames() {
			p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name}})
		}
		for remaining := 1; remaining > 0; {
			result := p.Plan(time.Now())
			if remaining = result.Remaining + len(result.Calls); len(result.Calls) > 0 {
				p.Deliver(b.call(0, result.Calls...), time.Now())
			}
		}
		if n := b.Stats()["p"].Queued; n != 0 {
			t.Errorf("%d calls wait that nobody waits for", n)
		}
	})
}
