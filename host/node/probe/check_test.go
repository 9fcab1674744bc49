package probe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// healthyHost returns the files of a host without findings.
func healthyHost() map[string]string {
	return map[string]string{
		"proc/self/status":                                            "Name:\tsluice\nCapEff:\t000001ffffffffff\n",
		"proc/self/oom_score_adj":                                     "0\n",
		"proc/sys/net/ipv4/ip_forward":                                "1\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_loose":               "1\n",
		"proc/sys/net/ipv6/conf/all/forwarding":                       "1\n",
		"proc/sys/net/ipv4/conf/all/rp_filter":                        "0\n",
		"proc/sys/net/ipv4/conf/lo/rp_filter":                         "1\n",
		"proc/sys/net/ipv4/conf/eth0/rp_filter":                       "2\n",
		"proc/sys/net/netfilter/nf_conntrack_max":                     "262144\n",
		"sys/module/nf_conntrack/parameters/hashsize":                 "65536\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "86400\n",
		"proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait":  "3600\n",
	}
}

func check(t *testing.T, files map[string]string, entries int, err error) map[string]Finding {
	t.Helper()
	h := Host{Root: tree(t, files), CPUs: 8}
	oomScoreAdj := -999
	all := slices.Concat(h.Capabilities(&oomScoreAdj), h.Sysctls(), h.Conntrack(kubeProxyDefaults(), func() (int, error) { return entries, err }))
	out := map[string]Finding{}
	for _, f := range all {
		if (f.State == Missing || f.State == Warning) && f.Impact == "" || f.State == OK && f.Impact != "" {
			t.Errorf("%s: state %s with impact %q", f.Name, f.State, f.Impact)
		}
		out[f.Name] = f
	}
	return out
}

func TestHealthyHostHasNoFindings(t *testing.T) {
	for _, f := range check(t, healthyHost(), 1000, nil) {
		if f.State != OK {
			t.Errorf("%+v", f)
		}
	}
}

func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		change   map[string]string
		entries  int
		err      error
		finding  string
		state    State
		required bool
		text     string
	}{
		"no CAP_NET_ADMIN":   {map[string]string{"proc/self/status": "CapEff:\t0000000001000000\n"}, 0, nil, "CAP_NET_ADMIN", Missing, true, "cannot program"},
		"CAP_NET_ADMIN only": {map[string]string{"proc/self/status": "CapEff:\t0000000000001000\n"}, 0, nil, "CAP_SYS_RESOURCE", Missing, false, "oomScoreAdj -999"},
		"oomScoreAdj is set already": {map[string]string{"proc/self/status": "CapEff:\t0000000000001000\n", "proc/self/oom_score_adj": "-999\n"},
			0, nil, "CAP_SYS_RESOURCE", OK, false, "not needed"},
		"no status":               {map[string]string{"proc/self/status": "Name: x\n"}, 0, nil, "CAP_NET_ADMIN", Unknown, false, "no CapEff"},
		"strict conntrack":        {map[string]string{"proc/sys/net/netfilter/nf_conntrack_tcp_loose": "0\n"}, 0, nil, "net.netfilter.nf_conntrack_tcp_loose", Warning, false, "no RST"},
		"no forwarding":           {map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"}, 0, nil, "net.ipv4.ip_forward", Warning, false, "sluice does not set it"},
		"no IPv6 forwarding":      {map[string]string{"proc/sys/net/ipv6/conf/all/forwarding": "0\n"}, 0, nil, "net.ipv6.conf.all.forwarding", Warning, false, "IPv6"},
		"strict on one interface": {map[string]string{"proc/sys/net/ipv4/conf/eth0/rp_filter": "1\n"}, 0, nil, "net.ipv4.conf.*.rp_filter", Warning, false, "on eth0"},
		"strict on all but one":   {map[string]string{"proc/sys/net/ipv4/conf/all/rp_filter": "1\n", "proc/sys/net/ipv4/conf/veth1/rp_filter": "0\n"}, 0, nil, "net.ipv4.conf.*.rp_filter", Warning, false, "on veth1"},
		"bridge without netfilter": {map[string]string{"sys/class/net/cni0/bridge/x": "", "proc/sys/net/bridge/bridge-nf-call-iptables": "0\n"},
			0, nil, "net.bridge.bridge-nf-call-iptables", Warning, false, "one bridge"},
		"bridge without br_netfilter": {map[string]string{"sys/class/net/cni0/bridge/x": ""}, 0, nil, "net.bridge.bridge-nf-call-iptables", Unknown, false, "modprobe br_netfilter"},
		"no conntrack netlink":        {nil, 0, fmt.Errorf("x: %w", unix.EOPNOTSUPP), "netlink", Missing, false, "UDP flows"},
		"not permitted":               {nil, 0, unix.EPERM, "netlink", Unknown, false, "not permitted"},
		"full table":                  {nil, 250_000, nil, "netlink", Warning, false, "250000 of 262144"},
		"small table":                 {map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": "1000\n"}, 0, nil, table + "max", OK, false, "sluice run sets it to 262144"},
		"no table":                    {map[string]string{"proc/sys/net/netfilter/nf_conntrack_max": "-"}, 0, nil, table + "max", Unknown, false, "is not a number"},
	} {
		t.Run(name, func(t *testing.T) {
			files := healthyHost()
			maps.Copy(files, c.change)
			all := check(t, files, c.entries, c.err)
			f, ok := all[c.finding]
			if !ok || f.State != c.state || !strings.Contains(f.Found+f.Impact+f.Remedy, c.text) {
				t.Errorf("got %+v", f)
			}
			if got := RequiredMissing(slices.Collect(maps.Values(all))); got != c.required {
				t.Errorf("required missing: %v", got)
			}
		})
	}
}

// nf_conntrack_max cannot be written from this network namespace.
func TestSettingThatCannotBeSetIsAWarning(t *testing.T) {
	is, err := readInt("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	found := Host{CPUs: 1}.Conntrack(Conntrack{MaxPerCore: is + 4}, ConntrackEntries)
	if f := found[1]; f.Name != table+"max" || f.State != Warning || !strings.Contains(f.Remedy, "--init-only") {
		t.Errorf("%+v", f)
	}
	if f := found[0]; f.State != OK || f.Found != "0 connections" {
		t.Errorf("%+v", f)
	}
}

func TestProbeThisHost(t *testing.T) {
	for _, f := range slices.Concat(Host{}.Capabilities(new(int)), Host{}.Sysctls()) {
		if f.Name == "CAP_NET_ADMIN" && f.State != OK {
			t.Errorf("in an own user namespace: %+v", f)
		}
	}
}

func TestOOMScoreThatNobodyHasSetIsNoFinding(t *testing.T) {
	for _, f := range (Host{}).Capabilities(nil) {
		if strings.Contains(f.Name+f.Impact, "oomScoreAdj") || f.Name == "CAP_SYS_RESOURCE" {
			t.Errorf("%+v", f)
		}
	}
}
