package eligibility

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestUnsafeAddressesAreNoEndpoints(t *testing.T) {
	rules := &EndpointRules{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}}
	cases, err := os.ReadFile("../../util/ipaddr/testdata/addresses") // host/plugin/registry passes the same
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(cases)) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := rules.Check(netip.MustParseAddr(text)); (err == nil) != (kind == "public" || kind == "private") {
			t.Errorf("%s, which is %s: %v", text, kind, err)
		}
	}
	for _, s := range []string{
		"0.255.255.255", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "ff02::1", "ff05::2", "64:ff9b::240.0.0.1", "10.96.0.1", "10.96.255.255", "fd00:10:96::a",
	} {
		if rules.Check(netip.MustParseAddr(s)) == nil {
			t.Errorf("%s may be an endpoint", s)
		}
	}
	for _, s := range []string{"10.97.0.1", "100.64.0.1", "192.168.0.1", "198.18.0.1", "203.0.113.1", "223.255.255.254", "fd00:10:97::1", "2001::1"} {
		if err := rules.Check(netip.MustParseAddr(s)); err != nil {
			t.Error(err)
		}
	}
	rules.Allowed = []netip.Prefix{netip.MustParsePrefix("240.0.0.0/8"), netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("168.63.129.16/32")}
	for _, s := range []string{"240.1.2.3", "168.63.129.16"} {
		if err := rules.Check(netip.MustParseAddr(s)); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"241.0.0.1", "10.96.0.1"} {
		if rules.Check(netip.MustParseAddr(s)) == nil {
			t.Errorf("%s may be an endpoint", s)
		}
	}
}

func TestReservedBlocksThatTheClusterUsesAreAccepted(t *testing.T) {
	for ranges, want := range map[string]string{
		"": "[]", "10.0.0.0/8": "[]", "0.0.0.0/0": "[]", "128.0.0.0/1": "[]", "240.0.0.0/4": "[240.0.0.0/4]", "255.1.0.0/16": "[240.0.0.0/4]", "0.1.0.0/16": "[0.0.0.0/8]",
		"240.0.0.1/32 0.0.0.0/8": "[0.0.0.0/8 240.0.0.0/4]", "64:ff9b::f000:0/100": "[]", "127.0.0.0/8": "[]", "169.254.0.0/16": "[]", "224.0.0.0/4": "[]",
	} {
		var list []netip.Prefix
		for s := range strings.FieldsSeq(ranges) {
			list = append(list, netip.MustParsePrefix(s))
		}
		if got := fmt.Sprint(ReservedInUse(list)); got != want {
			t.Errorf("%s: %s, want %s", ranges, got, want)
		}
	}
}

// TestEmbeddedAddressesAreCheckedLikeThemselves: an IPv6 form of any IPv4 address.
func TestEmbeddedAddressesAreCheckedLikeThemselves(t *testing.T) {
	rules := &EndpointRules{}
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		v4 := [4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}
		plain := netip.AddrFrom4(v4)
		for _, form := range []string{"::%s", "::ffff:%s", "::ffff:0:%s", "64:ff9b::%s", "64:ff9b:1::%s", fmt.Sprintf("2002:%02x%02x:%02x%02x::", v4[0], v4[1], v4[2], v4[3])} {
			embedded := netip.MustParseAddr(strings.ReplaceAll(form, "%s", plain.String()))
			if (rules.Check(plain) == nil) != (rules.Check(embedded) == nil) {
				t.Fatalf("%s: %v, %s: %v", plain, rules.Check(plain), embedded, rules.Check(embedded))
			}
		}
	}
}

// TestFirstEndpointsAreKept: the limit is the same whatever the order in which slices came, and counts before anything else.
func TestFirstEndpointsAreKept(t *testing.T) {
	svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
	s := model.NewSnapshot()
	for _, i := range rand.New(rand.NewPCG(2, 2)).Perm(50) {
		name := model.Name{Namespace: "shop", Name: string(rune('A' + i))}
		slice := &model.EndpointSlice{Name: name, Service: svc.Name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
		for j := range 10 {
			slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(j)}), Ready: true})
		}
		s.Apply(model.Change{Kind: model.SliceKind, Name: name, Slice: slice})
	}
	p := SelectEndpoints(svc, &svc.Ports[0], model.IPv4, s.Slices[svc.Name], NodeInfo{MaxEndpoints: 123})
	if len(p.Endpoints) != 123 || p.Omitted != 500-123 || p.Endpoints[122].Addr.String() != "10.244.12.2:8080" {
		t.Fatalf("%d endpoints, %d left out, the last %v", len(p.Endpoints), p.Omitted, p.Endpoints[len(p.Endpoints)-1].Addr)
	}
}
