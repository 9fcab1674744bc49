package ipvs

import (
	"context"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestOutcomesEqualWhatClientsSaw is the same test as that of mode nftables: the same rules count.
func TestOutcomesEqualWhatClientsSaw(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev := &plan.Plan{}
	d.apply(b, prev, nil)
	d.Bed.CheckOutcomes(t, testbed.DataPlane{
		Apply: func(next *plan.Plan) error {
			_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
			prev = next
			return err
		},
		ReadOutcomes: func() (map[model.EndpointKey]backend.OutcomeCounters, error) {
			return b.ReadOutcomes(context.Background())
		},
	})
}
