package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestShedConnectionsAreReset: the connections to an endpoint that a shed selects by their hash are reset, and no others.
func TestShedConnectionsAreReset(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1, 1)
	d.apply(d.open(), p, nil)
	if selected, reset := testbed.Shed(t, d.Lab.Node, d.Client, p, netip.MustParseAddrPort("10.96.0.80:80")); reset != selected {
		t.Errorf("%d of %d connections were reset", reset, selected)
	}
}
