package ipvs

import (
	"net/netip"
	"testing"
)

func TestConnectionsToSomeEndpointsKeepTheirSource(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	for weights, want := range map[[2]int]bool{{1, -1}: false, {-1, 1}: true} {
		p := web(t, weights[:]...)
		p.Global.NoMasquerade = []netip.Prefix{netip.MustParsePrefix("10.244.0.1/32")}
		d.apply(b, p, nil)
		a := d.ask(d.Client, "tcp", "10.96.0.80:80") // not a Pod
		if got := a.Client.Addr() != d.Client.Addr(a.Client.Addr()); got != want {
			t.Errorf("%s sees %s: masqueraded %v, want %v", a.Server, a.Client, got, want)
		}
	}
}
