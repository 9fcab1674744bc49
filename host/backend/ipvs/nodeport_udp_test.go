package ipvs

import (
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testbed"
)

func TestNodesUDPToNodePortsWithoutEndpointsIsRefused(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	testbed.ExpectNodePortsRefuseUDP(t, d.Lab.Node, func(pool string) {
		forward := func(endpoint string) string { return "reject 0 endpoints, total 0\n" }
		if pool != "reject" {
			forward = func(endpoint string) string {
				return fmt.Sprintf("forward 1 endpoint, total 1\n      %s:9000  weight 1  100.0 %%  active\n", endpoint)
			}
		}
		d.apply(b, parse(t, "service shop/web\n  port http  *4:30080/UDP  NodePort  masquerade=always balance=random\n    "+forward("10.244.0.1")+
			"  port http  *6:30080/UDP  NodePort  masquerade=always balance=random\n    "+forward("[fd00:10:244::1]")), nil)
	})
}
