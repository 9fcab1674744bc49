package agent

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

func TestCheckListsIPVSSysctlsOnce(t *testing.T) {
	names := func(cfg *config.Config) map[string]string {
		out := map[string]string{}
		for _, f := range Check(t.Context(), cfg) {
			if before, twice := out[f.Name]; twice && f.Group != before {
				t.Errorf("%s is in group %s and in %s", f.Name, before, f.Group)
			}
			out[f.Name] = f.Group
		}
		return out
	}
	cfg := config.Default()
	if got := names(cfg); got["net.ipv4.ip_forward"] != "sysctls" || got["net.ipv4.vs.conntrack"] != "" {
		t.Errorf("mode %s: %v", cfg.Mode, got)
	}
	cfg.Mode, cfg.IPVS.StrictARP = config.ModeIPVS, true
	got := names(cfg)
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.conf.all.arp_ignore"} {
		if got[name] != "IPVS" {
			t.Errorf("%s is in group %q: %v", name, got[name], got)
		}
	}
}

func TestConfigFindings(t *testing.T) {
	host := links{names: []string{"lo", "eth0"}, addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")}}
	const pods = "clusterCIDR: 10.244.0.0/16\n"
	for name, c := range map[string]struct {
		text string
		want string // name and found of each finding
	}{
		"the defaults":                 {"", "clusterCIDR "},
		"nothing amiss":                {pods + "bindAddress: 192.0.2.1\nnodePortAddresses: [192.0.2.0/24]\n", ""},
		"an address of another host":   {pods + "bindAddress: 192.0.2.9\n", "bindAddress 192.0.2.9 is not assigned to any link of this host"},
		"a bridge that is not there":   {"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", "detectLocal.bridgeInterface link cni0 does not exist"},
		"a bridge that is there":       {"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: eth0}\n", ""},
		"NodePorts on nothing":         {pods + "nodePortAddresses: [10.0.0.0/8, '::/0']\n", "nodePortAddresses no address of this host is in [10.0.0.0/8]; nodePortAddresses no address of this host is in [::/0]"},
		"NodePorts on loopback":        {pods + "nodePortAddresses: [127.0.0.0/8]\n", ""}, // sluice listens there
		"a field without its own mode": {pods + "detectLocalMode: NodeCIDR\n", "clusterCIDR "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse([]byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"+c.text), "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range configFindings(cfg, host) {
				got = append(got, f.Name+" "+f.Found)
				if f.Impact == "" || f.State != probe.Warning {
					t.Errorf("%+v", f)
				}
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
	if f := configFindings(config.Default(), links{err: errors.New("no netlink")}); f[len(f)-1].State != probe.Unknown {
		t.Errorf("%+v", f)
	}
}
