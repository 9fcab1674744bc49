package ipvs

import (
	"context"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestRefusedConnectionsAreTriedAgain is the same test as that of mode nftables: IPVS chooses again for a SYN that is repeated
// after an RST.
func TestRefusedConnectionsAreTriedAgain(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev := &plan.Plan{}
	d.apply(b, prev, nil)
	d.Bed.CheckRetries(t, testbed.RetryPlane{
		Apply: func(next *plan.Plan) error {
			_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
			prev = next
			return err
		},
		Retried: func() (uint64, uint64, error) {
			r, err := nftables.ReadRetries(context.Background(), d.Lab.Node.Fd())
			return r.Retried, r.NoRoom, err
		},
	})
}
