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

// Capabilities looks at what this process may do.
func (h Host) Capabilities(oomScoreAdj int) []Finding {
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
		finding("CAP_NET_ADMIN", unix.CAP_NET_ADMIN, true, "everything: sluice cannot program the kernel",
			"run as root, or give the container the capability"),
	}
	oom := finding("CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, false, fmt.Sprintf("oomScoreAdj %d: %s", oomScoreAdj, oomScoreSetting(0).Impact),
		"give the capability, or let the container runtime set it")
	if is, ierr := readInt(h.path(oomFile)); oom.State == Missing && ierr == nil && oomScoreAdj >= is {
		oom.State, oom.Impact, oom.Remedy = OK, "", ""
		oom.Found = fmt.Sprintf("not needed: oomScoreAdj is %d already, %d is wanted", is, oomScoreAdj)
	}
	return append(out, oom)
}

// effectiveCapabilities reads the effective capabilities of this process.
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

// Sysctls looks at settings that are others' to make (the node's, the network plug-in's) and that Services need.
func (h Host) Sysctls() []Finding {
	out := []Finding{
		h.sysctlEnabled("net.ipv4.ip_forward", "IPv4: the node does not forward, so Pods and clients outside reach no endpoint through a Service; "+
			"sluice does not set it, as kube-proxy in nftables mode does not"),
		h.sysctlEnabled("net.ipv6.conf.all.forwarding", "IPv6: the node does not forward, so Pods and clients outside reach no endpoint through a Service"),
	}
	if bridges, _ := filepath.Glob(h.path("/sys/class/net/*/bridge")); len(bridges) > 0 {
		f := h.sysctlEnabled("net.bridge.bridge-nf-call-iptables", "two Pods on one bridge do not reach each other through a Service: the answers pass the node by")
		if f.State == Unknown {
			f.Remedy = "if Pods are on a bridge: modprobe br_netfilter"
		}
		out = append(out, f)
	}
	return append(out, h.reversePathFilter())
}

// sysctlEnabled wants a sysctl to be on.
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

// reversePathFilter finds links with a strict reverse path filter: the larger of the link's value and that of all holds.
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
	if n := len(strict); n > 5 {
		strict = append(strict[:5], fmt.Sprintf("and %d more", n-5))
	}
	f.State, f.Found = Warning, "strict (1) on "+strings.Join(strict, ", ")
	f.Impact = "packets that come in by another link than the way back to their source are dropped, such as NodePort traffic on nodes with several links"
	f.Remedy = "where ways in and back differ: rp_filter=2"
	return f
}

// Conntrack looks at the connection table: whether it can be listed and changed, how full it is, and whether its
// settings are as wanted or can be made so.
func (h Host) Conntrack(c Conntrack, entries func() (int, error)) []Finding {
	netlink := Finding{Group: groupConntrack, Name: "netlink", State: OK}
	n, err := entries()
	limit, lerr := readInt(h.path(sysctlPath("net.netfilter.nf_conntrack_max")))
	switch {
	case errors.Is(err, unix.EPERM):
		netlink.State, netlink.Found = Unknown, err.Error()
	case err != nil:
		netlink.State, netlink.Found = Missing, err.Error()
		netlink.Impact = "connections to drained endpoints are not reset, and UDP flows to endpoints that are gone stay"
		netlink.Remedy = "CONFIG_NF_CT_NETLINK, modprobe nf_conntrack_netlink"
	case lerr == nil && limit > 0 && n > limit/10*9:
		netlink.State, netlink.Found = Warning, fmt.Sprintf("%d connections, room for %d", n, limit)
		netlink.Impact, netlink.Remedy = "new connections are dropped when the table is full", "raise conntrack.maxPerCore or conntrack.min"
	default:
		netlink.Found = fmt.Sprintf("%d connections", n)
	}
	const remedy = "sluice run --init-only with full rights on the host, or 0 in the configuration to leave it alone"
	return append([]Finding{netlink}, h.SettingFindings(groupConntrack, remedy, h.ConntrackSettings(c))...)
}

// SettingFindings tells of settings that sluice makes itself whether they are made, and if not whether it can.
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
			f.Found = fmt.Sprintf("%d; sluice run makes it %d", is, s.Want)
		case s.Optional:
			f.Found = fmt.Sprintf("%d; %d would be better, and cannot be set from here", is, s.Want)
		default:
			f.State, f.Found, f.Impact = Warning, fmt.Sprintf("%d, and %d is wanted but cannot be set from here", is, s.Want), s.Impact
			f.Remedy = remedy
		}
		out = append(out, f)
	}
	return out
}
