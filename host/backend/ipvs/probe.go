package ipvs

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/netns"
	"github.com/vishvananda/netlink"
)

// Feature is a kernel feature that this backend uses.
type Feature struct {
	Name     string // human-readable
	Kernel   string // configuration symbol or module that provides it
	For      string // what in sluice needs it
	Required bool
	Err      error // why it is missing; nil if it is present
}

// Probe tests, in a temporary network namespace, the kernel features that this backend needs in addition to those of
// the nftables backend.
func Probe(ctx context.Context) ([]Feature, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("ipvs: probe: %w", err)
	}
	out := []Feature{{Name: "IPVS", Kernel: "CONFIG_IP_VS, module ip_vs", For: "every Service", Required: true, Err: checkIPVS()}}
	if out[0].Err != nil {
		return out, nil
	}
	err := netns.DoInNew(func() error {
		h, err := openIPVS(0)
		if err != nil {
			return err
		}
		defer h.close()
		try := func(f Feature, err error) { f.Err = err; out = append(out, f) }
		for i, s := range []struct{ name, use string }{
			{"wrr", "Services without a policy, and round robin"}, {"wlc", "policies that balance by least connections"},
			{"mh", "policies that balance by client address"},
		} {
			try(Feature{Name: "scheduler " + s.name, Kernel: "module ip_vs_" + s.name, For: s.use, Required: i == 0},
				h.do(op{kind: opAddServer, key: testKey(i+1, model.TCP), serverConfig: serverConfig{scheduler: s.name}}))
		}
		v6 := addrKey(netip.MustParseAddr("2001:db8::1"), 80, model.TCP)
		try(Feature{Name: "IPv6", Kernel: "CONFIG_IP_VS_IPV6", For: "Services with IPv6 addresses"},
			h.do(op{kind: opAddServer, key: v6, serverConfig: serverConfig{scheduler: "rr"}}))
		for _, p := range []struct {
			proto model.Protocol
			name  string
		}{{model.UDP, "UDP"}, {model.SCTP, "SCTP"}} {
			try(Feature{Name: p.name, Kernel: "CONFIG_IP_VS_PROTO_" + p.name, For: p.name + " Services"},
				h.do(op{kind: opAddServer, key: testKey(100, p.proto), serverConfig: serverConfig{scheduler: "rr"}}))
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = DefaultLink
		try(Feature{Name: "dummy links", Kernel: "CONFIG_DUMMY, module dummy", For: "Service addresses, unless ipvs.interface names another link"},
			netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
		for _, s := range requiredSysctls {
			_, err := s.read()
			try(Feature{Name: "sysctl " + s.Name, Kernel: s.Kernel, For: s.Impact, Required: true}, err)
		}
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("ipvs: probe: %w", err)
	}
	return out, nil
}
