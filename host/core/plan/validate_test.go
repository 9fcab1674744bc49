package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestValidateErrorsNameFrontendAndField(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	type F = plan.Frontend
	type P = plan.Plan
	endpoint := func(f *F, i int) *plan.Endpoint {
		f.Pool.Endpoints = slices.Clone(f.Pool.Endpoints)
		return &f.Pool.Endpoints[i]
	}
	for _, c := range []struct {
		name   string
		change func(p *P, f *F)
		want   string
	}{
		{"loopback", func(p *P, _ *F) { p.Global.NodePortAddrs = addrs("127.0.0.1") }, "global: node-port-addresses: 127.0.0.1: a loopback"},
		{"no loopback", func(p *P, _ *F) { p.Global.LocalhostAddrs = addrs("10.0.0.1") }, "global: localhost-addresses: 10.0.0.1: no loopback"},
		{"zone", func(p *P, _ *F) { p.Global.NodePortAddrs = addrs("fe80::1%eth0") }, "global: node-port-addresses: fe80::1%eth0: has a zone"},
		{"address order", func(p *P, _ *F) { p.Global.NodePortAddrs = addrs("1.0.0.2", "1.0.0.1") }, "node-port-addresses: 1.0.0.1 after 1.0.0.2"},
		{"address twice", func(p *P, _ *F) { p.Global.NodePortAddrs = addrs("1.0.0.1", "1.0.0.1") }, "node-port-addresses: 1.0.0.1 after 1.0.0.1"},
		{"host bits", func(p *P, _ *F) { p.Global.PodSources = prefixes("10.0.0.1/8") }, "pod-sources: 10.0.0.1/8: host bits"},
		{"nested", func(p *P, _ *F) { p.Global.ServiceCIDRs = prefixes("10.0.0.0/8", "10.1.0.0/16") }, "service-cidrs: 10.1.0.0/16 is contained in 10.0.0.0/8"},
		{"interface", func(p *P, _ *F) { p.Global.PodInterfaces = []string{"a*b"} }, `pod-interfaces: "a*b"`},
		{"interface long", func(p *P, _ *F) { p.Global.PodInterfaces = []string{"abcdefghijklmnop"} }, "pod-interfaces:"},
		{"interface order", func(p *P, _ *F) { p.Global.PodInterfaces = []string{"b", "a"} }, "pod-interfaces: a after b"},
		{"mark", func(p *P, _ *F) { p.Global.MasqueradeMark = 3 }, "masquerade-mark: 0x3"},
		{"no mark", func(p *P, _ *F) { p.Global.MasqueradeMark = 0 }, "masquerade-mark: 0x0"},
		{"nil", func(p *P, f *F) { p.Frontends[f.Key] = nil }, "203.0.113.7:80/TCP: nil"},
		{"wrong key", func(_ *P, f *F) { f.Key.Port = 81 }, "key: 203.0.113.7:81/TCP in the frontend"},
		{"no address", func(p *P, f *F) { f.Key.Addr = netip.Addr{}; p.Frontends[f.Key] = f }, "address: no address"},
		{"mapped", func(p *P, f *F) { f.Key.Addr = netip.MustParseAddr("::ffff:1.2.3.4"); p.Frontends[f.Key] = f }, "address: an IPv4 address in IPv6 form"},
		{"port", func(p *P, f *F) { f.Key.Port = 0; p.Frontends[f.Key] = f }, "port: 0"},
		{"protocol", func(p *P, f *F) { f.Key.Protocol = 1; p.Frontends[f.Key] = f }, "protocol: protocol(1)"},
		{"owner protocol", func(_ *P, f *F) { f.Owner.Protocol = model.UDP }, "owner: its protocol is UDP"},
		{"owner", func(_ *P, f *F) { f.Owner.Service.Name = "a b" }, `owner: "shop/a b"`},
		{"owner port", func(_ *P, f *F) { f.Owner.Port = "-" }, `owner: "-"`},
		{"kind", func(_ *P, f *F) { f.Kind = 9 }, "kind: kind(9)"},
		{"kind of key", func(_ *P, f *F) { f.Kind = plan.NodePort }, "kind: NodePort at address 203.0.113.7"},
		{"masquerade", func(_ *P, f *F) { f.Masquerade = 9 }, "masquerade: masquerade(9)"},
		{"balance", func(_ *P, f *F) { f.Balance = 9 }, "balance: balance(9)"},
		{"affinity", func(_ *P, f *F) { f.Affinity = -1 }, "affinity: -1ns"},
		{"affinities", func(_ *P, f *F) { f.Affinity = 1 }, "affinity: 1ns, but 3h0m0s at "},
		{"empty ranges", func(_ *P, f *F) { f.SourceRanges = []netip.Prefix{} }, "source-ranges: empty"},
		{"range order", func(_ *P, f *F) { f.SourceRanges = prefixes("2.0.0.0/8", "1.0.0.0/8") }, "source-ranges: 1.0.0.0/8 after 2.0.0.0/8"},
		{"range family", func(_ *P, f *F) { f.SourceRanges = prefixes("fd00::/8") }, "source-ranges: fd00::/8 is not IPv4"},
		{"verdict", func(_ *P, f *F) { f.Pool.Verdict = 9 }, "pool: verdict: verdict(9)"},
		{"reject with weight", func(_ *P, f *F) { f.Pool.Verdict = plan.Reject }, "pool: verdict: reject with a total weight of 7"},
		{"forward to none", func(_ *P, f *F) { f.Outside = &plan.Pool{} }, "outside: verdict: forward with a total weight of 0"},
		{"outside", func(p *P, _ *F) {
			p.Frontends[key(t, "10.96.0.10:80/TCP")].Outside = &plan.Pool{Verdict: plan.Drop}
		}, "10.96.0.10:80/TCP: outside: a ClusterIP"},
		{"endpoint family", func(_ *P, f *F) { endpoint(f, 0).Addr = netip.MustParseAddrPort("[fd00::1]:80") }, "pool: endpoint [fd00::1]:80: address: not IPv4"},
		{"endpoint port", func(_ *P, f *F) { endpoint(f, 0).Addr = netip.MustParseAddrPort("10.244.1.5:0") }, "pool: endpoint 10.244.1.5:0: port: 0"},
		{"endpoint phase", func(_ *P, f *F) { endpoint(f, 0).Phase = 9 }, "pool: endpoint 10.244.1.5:8080: phase: phase(9)"},
		{"deadline", func(_ *P, f *F) { endpoint(f, 0).Deadline = -1 }, "pool: endpoint 10.244.1.5:8080: deadline: -1"},
		{"endpoint twice", func(_ *P, f *F) { endpoint(f, 1).Addr = f.Pool.Endpoints[0].Addr }, "pool: endpoint 10.244.1.5:8080 after 10.244.1.5:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := shopPlan(t)
			if err := plan.Validate(p); err != nil {
				t.Fatal(err)
			}
			c.change(p, p.Frontends[key(t, "203.0.113.7:80/TCP")])
			err := plan.Validate(p)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant … %s …", err, c.want)
			}
			_ = plan.Format(&plan.Plan{Global: p.Global}) // what is wrong can still be printed
		})
	}
}

func TestNormalizePrefixes(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"10.1.0.0/16 10.0.0.0/8 10.1.2.0/24", "10.0.0.0/8"},
		{"10.0.0.7/8 10.0.0.0/8", "10.0.0.0/8"},
		{"fd00::/8 10.0.0.0/8", "10.0.0.0/8 fd00::/8"},
		{"10.128.0.0/9 10.0.0.0/9", "10.0.0.0/9 10.128.0.0/9"},
		{"10.0.0.0/24 10.0.1.0/24 10.0.0.0/25 10.0.2.0/24 10.0.0.0/23", "10.0.0.0/23 10.0.2.0/24"},
		{"::/0 0.0.0.0/0 1.2.3.4/32", "0.0.0.0/0 ::/0"},
	} {
		var in []netip.Prefix
		for _, s := range strings.Fields(c.in) {
			in = append(in, netip.MustParsePrefix(s))
		}
		before := slices.Clone(in)
		var got []string
		for _, p := range plan.NormalizePrefixes(in) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != c.want || !slices.Equal(in, before) {
			t.Errorf("%s: got %v, want %s", c.in, got, c.want)
		}
	}
	if plan.NormalizePrefixes(nil) != nil {
		t.Error("nothing is not nil")
	}
}

func TestKeysRoundTrip(t *testing.T) {
	for _, s := range []string{"10.96.0.1:80/TCP", "[fd00::1]:53/UDP", "*4:30080/SCTP", "*6:65535/TCP"} {
		if got := key(t, s).String(); got != s {
			t.Errorf("%s came back as %s", s, got)
		}
	}
	for _, s := range []string{"", "/TCP", "*5:80/TCP", "*4:0/TCP", "*4:x/TCP", "0.0.0.0:80/TCP", "[::]:80/TCP", "1.2.3.4/TCP", "1.2.3.4:80", "1.2.3.4:80/tcp"} {
		if k, err := plan.ParseKey(s); err == nil {
			t.Errorf("%q was read as %v", s, k)
		}
	}
}

func TestInvalidEnumValuesHaveAString(t *testing.T) {
	for want, got := range map[string]string{
		"kind(4)": plan.Kind(4).String(), "verdict(3)": plan.Verdict(3).String(), "phase(255)": plan.Phase(255).String(),
		"masquerade(4)": plan.Masquerade(4).String(), "balance(4)": plan.Balance(4).String(),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if _, err := plan.Phase(9).MarshalText(); err == nil {
		t.Error("a phase without a name was marshalled")
	}
}
