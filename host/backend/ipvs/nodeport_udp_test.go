package ipvs

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
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

func TestPacketsToLocalhostNodePortsAreRefusedAndCounted(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	testbed.ExpectLocalhostNodePortsRefuse(t, d.Lab.Node, func(text string) {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d.apply(b, p, nil)
	}, func() map[string]uint64 {
		counts, err := nftables.ReadLocalhostRefused(context.Background(), d.Lab.Node.Fd())
		if err != nil {
			t.Fatal(err)
		}
		return map[string]uint64{"IPv4 UDP": counts[0].UDP, "IPv4 SCTP": counts[0].SCTP, "IPv6 UDP": counts[1].UDP, "IPv6 SCTP": counts[1].SCTP}
	})
}
