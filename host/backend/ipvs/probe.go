package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// standardSchedulers are the schedulers that plans ask for.
var standardSchedulers = []string{"wrr", "wlc", "mh", "sh"}

// probeSchedulers tells which of the standard schedulers and of others the kernel has, by using them in a network namespace
// of their own. Without the right to make one, all are taken to be there. Others that are missing are an error.
func probeSchedulers(others ...string) (map[string]bool, error) {
	if err := checkIPVS(); err != nil {
		return nil, err
	}
	have := map[string]bool{}
	err := inNewNetns(func() error {
		h, err := openIPVS(0)
		if err != nil {
			return err
		}
		defer h.close()
		for i, name := range append(standardSchedulers, others...) {
			k := addrKey(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 80, model.TCP)
			err := h.do(op{kind: opAddServer, key: k, serverConfig: serverConfig{scheduler: name}})
			switch {
			case err == nil:
				have[name] = true
			case !errors.Is(err, unix.ENOENT):
				return fmt.Errorf("try scheduler %s: %w", name, withHint(err))
			}
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		for _, name := range append(standardSchedulers, others...) {
			have[name] = true
		}
		return have, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	for _, name := range others {
		if !have[name] {
			return nil, fmt.Errorf("ipvs: the kernel has no scheduler %s (ipvs.scheduler; modprobe ip_vs_%s)", name, name)
		}
	}
	return have, nil
}

// Feature is something of the kernel that this backend uses.
type Feature struct {
	Name     string // in words
	Kernel   string // the option or module that has it
	For      string // what of sluice needs it
	Required bool
	Err      error // why it is not there; nil: it is
}

// Probe tries what this backend uses besides what the nftables backend does, in a network namespace that is gone
// afterwards.
func Probe(ctx context.Context) ([]Feature, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("ipvs: probe: %w", err)
	}
	out := []Feature{{Name: "IPVS", Kernel: "CONFIG_IP_VS, module ip_vs", For: "every Service", Required: true, Err: checkIPVS()}}
	if out[0].Err != nil {
		return out, nil
	}
	err := inNewNetns(func() error {
		h, err := openIPVS(0)
		if err != nil {
			return err
		}
		defer h.close()
		try := func(f Feature, err error) { f.Err = err; out = append(out, f) }
		for i, s := range []struct{ name, use string }{
			{"wrr", "Services without a policy, and balancing in turn"}, {"wlc", "policies that balance by least connections"},
			{"mh", "policies that balance by the client's address"},
		} {
			k := addrKey(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 80, model.TCP)
			try(Feature{Name: "scheduler " + s.name, Kernel: "module ip_vs_" + s.name, For: s.use, Required: i == 0},
				h.do(op{kind: opAddServer, key: k, serverConfig: serverConfig{scheduler: s.name}}))
		}
		v6 := addrKey(netip.MustParseAddr("2001:db8::1"), 80, model.TCP)
		try(Feature{Name: "IPv6", Kernel: "CONFIG_IP_VS_IPV6", For: "Services with IPv6 addresses"},
			h.do(op{kind: opAddServer, key: v6, serverConfig: serverConfig{scheduler: "rr"}}))
		for _, p := range []struct {
			proto model.Protocol
			name  string
		}{{model.UDP, "UDP"}, {model.SCTP, "SCTP"}} {
			k := addrKey(netip.AddrFrom4([4]byte{192, 0, 2, 100}), 80, p.proto)
			try(Feature{Name: p.name, Kernel: "CONFIG_IP_VS_PROTO_" + p.name, For: p.name + " Services"},
				h.do(op{kind: opAddServer, key: k, serverConfig: serverConfig{scheduler: "rr"}}))
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = DefaultLink
		try(Feature{Name: "dummy links", Kernel: "CONFIG_DUMMY, module dummy", For: "the addresses of Services, unless ipvs.interface names another link"},
			netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
		for _, s := range requiredSysctls {
			_, err := s.read()
			try(Feature{Name: "the setting " + s.Name, Kernel: s.Kernel, For: s.Impact, Required: true}, err)
		}
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("ipvs: probe: %w", err)
	}
	return out, nil
}
