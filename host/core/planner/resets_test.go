package planner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// resetAll resets the connections of all endpoints, those of the local pool a second later.
func resetAll(req *abi.Request, resp *abi.Response) error {
	for i := range resp.Results {
		resp.Results[i].Value, resp.Results[i].ResetAfterMS = abi.One, 1000+1000*uint32(req.Pool)
	}
	return nil
}

// TestEachPoolIsResetOnce: an endpoint is in the cluster pool and in the local pool, with deadlines of their own.
func TestEachPoolIsResetOnce(t *testing.T) {
	settings := testSettings()
	settings.Policies.Default = "zone"
	p := New(settings, func(string) (policy.Plugin, error) { return policytest.Plugin{Answer: resetAll}, nil })
	p.Apply([]model.Change{{Kind: model.Synced}, lb(nil), lbSlice(model.IPv4, "n0")})
	var all []string
	for ms := 0; ms < 5000; ms += 500 {
		for _, name := range p.ServiceNames() {
			p.markChanged(name)
		}
		for _, r := range p.PlanNow(time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond)).Resets {
			all = append(all, fmt.Sprint(ms, " ", r.Frontend))
		}
	}
	want := []string{"1000 *4:30080/TCP", "1000 *4:30081/TCP", "1000 10.96.0.9:80/TCP", "1000 10.96.0.9:81/TCP", "2000 *4:30080/TCP", "2000 *4:30081/TCP"}
	if !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
}
