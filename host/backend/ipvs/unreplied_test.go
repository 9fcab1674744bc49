package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

// TestPortsThatMetSilenceMeetAnotherEndpoint once their entries are deleted, and established connections go on.
func TestPortsThatMetSilenceMeetAnotherEndpoint(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	u := testbed.Unreplied{
		Node: d.Lab.Node, Client: d.Client, Silent: d.Pods[0], To: netip.MustParseAddrPort("10.96.0.80:80"),
		Endpoint: netip.MustParseAddrPort("10.244.0.1:9000"), Table: &conntrack.Table{},
		Apply:  func(silent, other uint16) { d.apply(b, web(t, int(silent), int(other)), nil) },
		Source: d.Lab.Node.Addrs[0], // the client is not a Pod
		Other:  "p2",
	}
	u.Check(t)
}
