package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestShedConnectionsAreReset: the connections to an endpoint that a shed selects by their hash are reset, and no others.
func TestShedConnectionsAreReset(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1, 1)
	d.apply(d.open(), p, nil)
	for _, all := range []bool{false, true} {
		r := testbed.Resets{
			Node: d.Lab.Node, Client: d.Client, Plan: p, To: netip.MustParseAddrPort("10.96.0.80:80"), Table: &conntrack.Table{}, All: all,
		}
		r.Check(t)
	}
}
