package replay

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestRefusedPartsGoNowhere: what a route refuses is what a frontend without endpoints refuses.
func TestRefusedPartsGoNowhere(t *testing.T) {
	pool := func(verdict plan.Verdict, refused uint16, weights ...uint16) *plan.Frontend {
		f := &plan.Frontend{Pool: plan.Pool{Verdict: verdict}}
		for i, w := range weights {
			f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80), Weight: w})
		}
		if refused > 0 {
			f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(plan.Refusing(model.IPv4), 80), Weight: refused})
		}
		return f
	}
	for _, c := range []struct {
		a, b *plan.Frontend
		want float64
	}{
		{pool(plan.Forward, 1, 3), pool(plan.Forward, 0, 3), 0.25},
		{pool(plan.Forward, 1, 3), pool(plan.Reject, 0), 0.75},
		{pool(plan.Forward, 1, 3), nil, 0.75},
		{pool(plan.Forward, 1, 3), pool(plan.Forward, 2, 6), 0},
	} {
		if got := divergence(c.a, c.b); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v and %+v: %g, want %g", c.a, c.b, got, c.want)
		}
	}
}
