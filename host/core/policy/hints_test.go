package policy

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// A policy that ignores hints gives its plugins every ready endpoint of the cluster pool as chosen; the default rules follow
// hints.
func TestPluginsSeeEndpointsWithoutHints(t *testing.T) {
	for ignore, want := range map[bool][3]uint32{false: {1, 0, 0}, true: {1, 1, 0}} {
		p := newNeedy(0)
		b := newNeedyFixture(p)
		eps := b.in.Port.Endpoints
		eps[0].HintedZone, eps[1].HintedZone = true, false
		eps[1].InCluster = false // by the hints
		eps[2] = eligibility.Endpoint{Addr: eps[2].Addr, Serving: true, Terminating: true}
		b.in.Port.UsesCluster = true
		b.policy.IgnoreHints = ignore
		b.expect(t, "a decision", FromChain, uint16(want[0]+6*want[1]), uint16(want[1]), uint16(want[2]))
		for i, w := range want {
			e := p.request.Endpoints[i]
			if load := e.Capacity / abi.One * (e.Share / abi.One); load != w || e.Conditions&abi.Chosen/abi.Chosen != w {
				t.Errorf("ignored %v: endpoint %d has capacity %d, share %d, conditions %b", ignore, i, e.Capacity, e.Share, e.Conditions)
			}
		}
		p.fakePlugin.decide = failDecide
		b.policy.OnFailure = Default
		b.in.Zone = "c" // another request
		b.expect(t, "the plugin fails", FromDefault, 1, 0, 0)

		local := newNeedy(0)
		b = newNeedyFixture(local)
		b.policy.IgnoreHints, b.in.Pool = ignore, abi.PoolLocal
		for i := range b.in.Port.Endpoints {
			b.in.Port.Endpoints[i].Local, b.in.Port.Endpoints[i].InLocal = true, i == 0
		}
		b.decide()
		if e := &local.request.Endpoints[1]; e.Capacity > 0 && e.Share > 0 {
			t.Errorf("ignored %v: in the local pool an endpoint that is not chosen has capacity %d, share %d", ignore, e.Capacity, e.Share)
		}
	}
}
