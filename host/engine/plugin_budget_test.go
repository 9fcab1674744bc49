package engine_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// slowPlugin is slow but stays within its fuel.
type slowPlugin struct{}

func (slowPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	time.Sleep(20 * time.Millisecond)
	for i := range resp.Results {
		resp.Results[i].Weight = 3
	}
	return nil
}
func (slowPlugin) Needs() uint32    { return 0 }
func (slowPlugin) Revision() string { return "1" }

func TestSlowPluginsDoNotDelayOtherServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.selector = policy.Selector{{Key: "slow", Op: policy.Exists}}
		r.run(fake.Open(r.kernel), slowPlugin{}, false)
		t.Cleanup(r.end)
		changes := []model.Change{svc(), eps(1, 2)}
		const many = 200 // 4 s of plugin time
		for i := range many {
			n := model.Name{Namespace: "slow", Name: fmt.Sprint("s", i)}
			s, e := *svc().Service, *eps(1, 2).Slice
			s.Name, s.Labels, s.ClusterIPs = n, map[string]string{"slow": ""}, []netip.Addr{netip.AddrFrom4([4]byte{10, 97, 0, byte(i)})}
			e.Name, e.Service = n, n
			changes = append(changes, model.Change{Kind: model.ServiceKind, Name: n, Service: &s}, model.Change{Kind: model.SliceKind, Name: n, Slice: &e})
		}
		r.feed <- append(changes, synced)
		r.advance(100 * time.Millisecond)
		r.expect("the other Service", "1:1 2:1 forward")
		p, _ := r.kernel.Table(fake.Name)
		if len(p.Frontends) != many+1 {
			t.Fatalf("%d frontends: those that wait for their plugin have the default rules", len(p.Frontends))
		}
		r.feed <- []model.Change{eps(1, 2, 3)}
		r.advance(100 * time.Millisecond)
		r.expect("a change in the middle of it", "1:1 2:1 3:1 forward")
		r.advance(5 * time.Second)
		decided := 0
		p, _ = r.kernel.Table(fake.Name)
		for _, f := range p.Frontends {
			if f.Pool.Endpoints[0].Weight == 3 {
				decided++
			}
		}
		if decided != many {
			t.Fatalf("%d of %d Services have their plugin's answer", decided, many)
		}
	})
}
