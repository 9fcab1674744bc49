package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// affinityClients are clients with addresses of their own, and the endpoint of each.
type affinityClients struct {
	*env
	to       netip.AddrPort
	last     netip.Addr
	endpoint map[netip.Addr]string
}

func (d *env) affinityClients(pool, to string) *affinityClients {
	d.Helper()
	p := netip.MustParsePrefix(pool)
	if err := d.Lab.Route(p, d.Client); err != nil {
		d.Fatal(err)
	}
	return &affinityClients{d, netip.MustParseAddrPort(to), p.Addr(), map[netip.Addr]string{}}
}

func (c *affinityClients) ask(client netip.Addr) string {
	c.Helper()
	a, err := c.Client.AskFrom("tcp", client, c.to, askTimeout)
	if err != nil {
		c.Fatalf("%s: %v", client, err)
	}
	return a.Server
}

func (c *affinityClients) arrive(n int) {
	c.Helper()
	for range n {
		c.last = c.last.Next()
		if err := c.Client.AddAddr("lo", c.last); err != nil {
			c.Fatal(err)
		}
		c.endpoint[c.last] = c.ask(c.last)
	}
}

// moves connects once from each client, and returns how many got another endpoint.
func (c *affinityClients) moves() (n int) {
	c.Helper()
	for client, before := range c.endpoint {
		if c.ask(client) != before {
			n++
		}
	}
	return n
}

const affinityServices = `service shop/a
  port http  10.96.0.80:80/TCP  ClusterIP  masquerade=outside affinity=3h balance=random
    forward
      10.244.0.1:9000 weight 1
      10.244.0.2:9000 weight 1
service shop/b
  port http  10.96.0.81:80/TCP  ClusterIP  masquerade=outside affinity=3h balance=random
    forward
      10.244.0.1:9000 weight 1
      10.244.0.2:9000 weight 1
`

// TestSwitchingModesKeepsEveryClient: session affinity is nftables' in both modes.
func TestSwitchingModesKeepsEveryClient(t *testing.T) {
	d := newEnv(t)
	p := parse(t, affinityServices)
	nft := d.startModeNFTables(p)
	c := d.affinityClients("198.18.0.0/24", "10.96.0.80:80")
	check := func(what string) {
		t.Helper()
		if n := c.moves(); n > 0 {
			t.Errorf("%s: %d of %d clients moved", what, n, len(c.endpoint))
		}
		c.arrive(10)
	}
	check("before")
	for round := range 2 {
		b := d.open()
		d.apply(b, p, nil)
		check(fmt.Sprintf("round %d: mode ipvs", round))
		d.apply(b, p, &plan.Delta{})
		b.Close()
		if _, err := nft.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("round %d: mode nftables", round))
	}
}

// TestCrowdLeavesRoomForOtherServices lets more clients connect to one Service than there is room for.
func TestCrowdLeavesRoomForOtherServices(t *testing.T) {
	d := newEnv(t)
	o := d.options()
	o.Affinity = nftables.AffinityLimits{Reserved: 6, Shared: 4}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	d.apply(b, parse(t, affinityServices), nil)
	known, first, late := d.affinityClients("198.18.0.0/24", "10.96.0.81:80"), d.affinityClients("198.18.1.0/24", "10.96.0.80:80"), d.affinityClients("198.18.2.0/24", "10.96.0.80:80")
	known.arrive(3)
	first.arrive(10)
	late.arrive(10)
	moved := 0
	for range 20 {
		if moved += late.moves(); moved > 0 {
			break
		}
	}
	if moved == 0 {
		t.Error("clients without room keep their endpoint")
	}
	known.arrive(3)
	if n := known.moves() + first.moves(); n > 0 {
		t.Errorf("%d clients moved that there is room for", n)
	}
	u, err := nftables.ReadAffinityUsage(context.Background(), d.Lab.Node.Fd())
	if err != nil || len(u.Full) != 1 || u.Full[0].Service.Name != "a" {
		t.Errorf("got %+v, %v, want one full Service", u, err)
	}
}
