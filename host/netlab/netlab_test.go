package netlab

import (
	"net/netip"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestHostsReachEachOtherAndTheNodeInBothFamilies(t *testing.T) {
	addr := netip.MustParseAddr
	lab, err := New(addr("192.168.9.1"), addr("fd00:9::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	a, err := lab.AddHost("a", addr("10.1.0.2"), addr("fd00:1::2"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := lab.AddHost("b", addr("10.1.0.3"), addr("fd00:1::3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, srv := range []*Host{b, lab.Node} {
			for _, at := range srv.Addrs {
				to := netip.AddrPortFrom(at, 80)
				s, err := srv.Serve(network, to, srv.Name)
				if err != nil {
					t.Fatal(err)
				}
				got, err := a.Ask(network, to, 2*time.Second)
				if err != nil {
					t.Fatalf("%s %s: %v", network, to, err)
				}
				if got.Server != srv.Name || got.Client.Addr() != a.Addr(at) {
					t.Errorf("%s %s: got %+v", network, to, got)
				}
				s.Close()
			}
		}
	}
	if _, err := a.Ask("tcp", netip.AddrPortFrom(b.Addrs[0], 81), time.Second); !Refused(err) {
		t.Errorf("closed port: got %v, want a refusal", err)
	}
}
