package weights

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// fair is a plugin that sets shares to what Fair returns.
type fair struct{}

func (fair) Manifest() string       { return sdktest.Manifest(sdk.RoleAdjust) }
func (fair) Configure([]byte) error { return nil }
func (fair) Decide(req *sdk.Request, resp *sdk.Response) error {
	for i, n := range Fair(nil, req) {
		resp.SetShare(i, int(n))
	}
	return nil
}

func TestFairIsWhatTheHostGives(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		req := sdktest.NewRequest("a", nil, sdktest.Repeat(1+rnd.IntN(20), sdktest.Ready("a"))...)
		for range rnd.IntN(4) {
			req.Groups = append(req.Groups, uint32(rnd.IntN(3))*1000)
		}
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			e.Capacity, e.Share = uint32(rnd.IntN(3))*500_000, uint32(rnd.IntN(3))*400_000
			e.Group = uint16(rnd.IntN(max(1, len(req.Groups))))
		}
		parts := req.Parts(nil)
		for i, r := range sdktest.MustRun(t, fair{}, "", req).Results {
			want := 0.0
			if parts != nil {
				want = parts[i]
			}
			if got := float64(r.Value) / Whole; math.Abs(got-want) > 1e-6 || (got == 0) != (want == 0) {
				t.Fatalf("round %d: endpoint %d of %+v with parts %v: %v, want %v", round, i, req.Endpoints, req.Groups, got, want)
			}
		}
	}
}
