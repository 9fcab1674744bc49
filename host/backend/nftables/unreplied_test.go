package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestPortsThatMetSilenceMeetAnotherEndpoint once their entries are deleted, and established connections go on.
func TestPortsThatMetSilenceMeetAnotherEndpoint(t *testing.T) {
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		t.Run(to, func(t *testing.T) {
			d := newTestEnv(t, 2)
			at := netip.MustParseAddrPort(to)
			u := testbed.Unreplied{
				Node: d.lab.Node, Client: d.client, Silent: d.pods[0], To: at, Endpoint: netip.AddrPortFrom(d.pods[0].Addr(at.Addr()), 9000), Table: &conntrack.Table{},
				Source: d.client.Addr(at.Addr()),
				Apply: func(silent, other uint16) {
					d.apply(service(frontend(to+"/TCP ClusterIP masquerade=never", fmt.Sprintf("1*%d 2*%d", silent, other))))
				},
				Other: "p2",
			}
			u.Check(t)
		})
	}
}
