package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Groups of findings.
const (
	groupCapabilities = "capabilities"
	groupSysctls      = "sysctls"
	groupConntrack    = "connection tracking"
)

// Capabilities checks the capabilities of this process. oomScoreAdj is what it shall be; nil: nobody has asked for a value.
func (h Host) Capabilities(oomScoreAdj *int) []Finding {
	set, err := h.effectiveCapabilities()
	has := func(bit int) bool { return set&(1<<bit) != 0 }
	finding := func(name string, bit int, required bool, costs, remedy string) Finding {
		f := Finding{Group: groupCapabilities, Name: name, Required: required, State: OK}
		switch {
		case err != nil:
			f.State, f.Found = Unknown, err.Error()
		case !has(bit):
			f.State, f.Impact, f.Remedy = Missing, costs, remedy
		}
		return f
	}
	out := []Finding{
		finding("CAP_NET_ADMIN", unix.CAP_NET_ADMIN, true, "sluice cannot program the kernel",
			"run as root, or add the capability to the container"),
	}
	if oomScoreAdj == nil {
		return out
	}
	oom := finding("CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, false, fmt.Sprintf("oomScoreAdj %d: %s", *oomScoreAdj, oomScoreSetting(0).Impact),
		"add the capability, or let the container runtime set it")
	if is, ierr := readInt(h.path(oomFile)); oom.State == Missing && ierr == nil && *oomScoreAdj >= is {
		oom.State, oom.Impact, oom.Remedy = OK, "", ""
		oom.Found = fmt.Sprintf("not needed: oom_score_adj is %d, oomScoreAdj is %d", is, *oomScoreAdj)
	}
	return append(out, oom)
}

// effectiveCapabilities returns the bit set of this process's effective capabilities.
func (h Host) effectiveCapabilities() (uint64, error) {
	f, err := os.Open(h.path("/proc/self/status"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		}
	}
	return 0, errors.New("no CapEff in /proc/self/status")
}

// Sysctls checks sysctls that Services need and that the node's operator or network plugin owns.
func (h Host) Sysctls() []Finding {
	out := []Finding{
		h.sysctlEnabled("net.ipv4.ip_forward", "IPv4: the node does not forward, so Pods and external clients cannot reach endpoints through a Service; "+
			"like kube-proxy in nftables mode, sluice does not set it"),
		h.sysctlEnabled("net.ipv6.conf.all.forwarding", "IPv6: the node does not forward, so Pods and external clients cannot reach endpoints through a Service"),
		h.sysctlEnabled("net.netfilter.nf_conntrack_tcp_loose", "connections that a policy resets get no RST; in mode nftables, their clients "+
			"and, if conntrack is flushed, those of all connections wait until they time out"),
	}
	if bridges, _ := filepath.Glob(h.path("/sys/class/net/*/bridge")); len(bridges) > 0 {
		f := h.sysctlEnabled("net.bridge.bridge-nf-call-iptables", "two Pods on one bridge cannot reach each other through a Service, because replies bypass the node's NAT")
		if f.State == Unknown {
			f.Remedy = "if Pods are attached to a bridge: modprobe br_netfilter"
		}
		out = append(out, f)
	}
	return append(out, h.reversePathFilter())
}

// sysctlEnabled checks that a sysctl is not 0.
func (h Host) sysctlEnabled(name, costs string) Finding {
	f := Finding{Group: groupSysctls, Name: name, State: OK}
	is, err := readInt(h.path(sysctlPath(name)))
	switch {
	case err != nil:
		f.State, f.Found = Unknown, err.Error()
	case is == 0:
		f.State, f.Found, f.Impact, f.Remedy = Warning, "0", costs, "sysctl -w "+name+"=1"
	default:
		f.Found = strconv.Itoa(is)
	}
	return f
}

// reversePathFilter finds interfaces with a strict reverse path filter. The kernel uses the larger of the interface's value
// and that of all.
func (h Host) reversePathFilter() Finding {
	f := Finding{Group: groupSysctls, Name: "net.ipv4.conf.*.rp_filter", State: OK}
	files, _ := filepath.Glob(h.path("/proc/sys/net/ipv4/conf/*/rp_filter"))
	all, err := readInt(h.path(sysctlPath("net.ipv4.conf.all.rp_filter")))
	if err != nil || len(files) == 0 {
		f.State, f.Found = Unknown, fmt.Sprint(err)
		return f
	}
	var strict []string
	for _, file := range files {
		link := filepath.Base(filepath.Dir(file))
		if is, err := readInt(file); err == nil && max(is, all) == 1 && link != "all" && link != "default" && link != "lo" {
			strict = append(strict, link)
		}
	}
	if len(strict) == 0 {
		return f
	}
	slices.Sort(strict)
	f.State, f.Found = Warning, "strict (1) on "+shortList(strict)
	f.Impact = "packets that arrive on another interface than the route to their source uses are dropped, such as NodePort traffic on nodes with several interfaces"
	f.Remedy = "set rp_filter=2 where routing is asymmetric"
	return f
}

// Conntrack checks whether the conntrack table can be listed and modified, how full it is, and whether its settings have, or
// can be set to, the configured values.
func (h Host) Conntrack(c Conntrack, entries func() (int, error)) []Finding {
	netlink := Finding{Group: groupConntrack, Name: "netlink", State: OK}
	n, err := entries()
	limit, lerr := readInt(h.path(sysctlPath("net.netfilter.nf_conntrack_max")))
	switch {
	case errors.Is(err, unix.EPERM):
		netlink.State, netlink.Found = Unknown, err.Error()
	case err != nil:
		netlink.State, netlink.Found = Missing, err.Error()
		netlink.Impact = "connections to drained endpoints are not reset, and UDP flows to removed endpoints persist"
		netlink.Remedy = "CONFIG_NF_CT_NETLINK, modprobe nf_conntrack_netlink"
	case lerr == nil && limit > 0 && n > limit/10*9:
		netlink.State, netlink.Found = Warning, fmt.Sprintf("%d of %d connections", n, limit)
		netlink.Impact, netlink.Remedy = "new connections are dropped when the table is full", "raise conntrack.maxPerCore or conntrack.min"
	default:
		netlink.Found = fmt.Sprintf("%d connections", n)
	}
	const remedy = "run sluice run --init-only as root on the host, or set the field to 0 to keep the kernel's value"
	return append([]Finding{netlink}, h.SettingFindings(groupConntrack, remedy, h.ConntrackSettings(c))...)
}

// SettingFindings checks whether settings have the value that sluice run sets, or whether it can set it.
func (h Host) SettingFindings(group, remedy string, settings []Setting) []Finding {
	var out []Finding
	for _, s := range settings {
		f := Finding{Group: group, Name: s.Name, State: OK}
		is, good, err := h.read(s)
		switch {
		case err != nil:
			f.State, f.Found = Unknown, err.Error()
		case good:
			f.Found = strconv.Itoa(is)
		case unix.Faccessat(unix.AT_FDCWD, h.file(s), unix.W_OK, unix.AT_EACCESS) == nil:
			f.Found = fmt.Sprintf("%d; sluice run sets it to %d", is, s.Want)
		case s.Optional:
			f.Found = fmt.Sprintf("%d; %d is recommended, but this process cannot set it", is, s.Want)
		default:
			f.State, f.Found, f.Impact = Warning, fmt.Sprintf("%d; %d is configured, but this process cannot set it", is, s.Want), s.Impact
			f.Remedy = remedy
		}
		out = append(out, f)
	}
	return out
}
