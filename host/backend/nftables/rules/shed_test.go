package rules

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestShedConnectionsAreBalancedAgain: the connections to an endpoint that a shed selects by their hash are balanced again with their
// next packet. They are reset, unless they are not masqueraded and get to the same endpoint, where they go on. No others are touched.
func TestShedConnectionsAreBalancedAgain(t *testing.T) {
	d := newTestEnv(t, 2)
	for _, masquerade := range []string{"always", "never"} {
		p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade="+masquerade, "1 2")))
		selected, reset := testbed.Shed(t, d.lab.Node, d.client, p, netip.MustParseAddrPort("10.96.0.10:80"))
		if reset == 0 || masquerade == "always" && reset != selected {
			t.Errorf("masquerade %s: %d of %d connections were reset", masquerade, reset, selected)
		}
	}
}
