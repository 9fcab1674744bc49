// Package kubeproxy detects a running kube-proxy, and finds and removes what it has left in the kernel. It changes nothing
// else.
//
// If two proxies translate the same packets, the one that registered its hooks last wins. So sluice takes over with its
// first transaction. But rules that kube-proxy wrote later, and those of Services that sluice does not have, stay in effect
// until they are removed.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Leftover is a group of kernel objects that kube-proxy has left behind.
type Leftover struct {
	Location string // for example "iptables (nf_tables), ip nat"
	Kind     string // for example "chains"; "" if Location is the object
	Count    int
}

// String returns, for example, "iptables (nf_tables), ip nat: 12 chains".
func (l Leftover) String() string {
	if l.Kind == "" {
		return l.Location
	}
	return fmt.Sprintf("%s: %d %s", l.Location, l.Count, l.Kind)
}

// remnant is one kind of leftovers.
type remnant interface {
	find(ctx context.Context) ([]Leftover, error)
	// remove removes what find finds. Objects that no longer exist are not an error.
	remove(ctx context.Context) error
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ From, To uint16 }

func (r PortRange) contains(port uint16) bool { return r.From <= port && port <= r.To }

// remnants are in the order of removal: first those that refer to others.
func remnants(nodePorts PortRange) []remnant {
	return []remnant{nftablesTables{}, iptablesNFT{}, iptablesLegacy{}, ipvs{nodePorts}, ipsets{}}
}

// Find returns the leftovers in the network namespace of the calling thread. nodePorts are the ports of virtual servers at the
// node's own addresses that are kube-proxy's, and not another program's: the API server's --service-node-port-range. The error
// joins those of the kinds that could not be read; leftovers of the other kinds are returned with it.
func Find(ctx context.Context, nodePorts PortRange) ([]Leftover, error) {
	var all []Leftover
	var errs []error
	for _, r := range remnants(nodePorts) {
		found, err := r.find(ctx)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Remove removes the leftovers that Find returns. It continues after errors; the error names what remains. It may be called
// again.
func Remove(ctx context.Context, nodePorts PortRange) (removed []Leftover, err error) {
	removed, _, err = removeAll(ctx, nodePorts, false)
	return removed, err
}

// Drain is Remove, except that virtual servers with open connections remain, with their addresses and the link; busy is their
// number. They get no new connections if another proxy has taken over. Call Drain periodically until busy is 0.
func Drain(ctx context.Context, nodePorts PortRange) (removed []Leftover, busy int, err error) {
	return removeAll(ctx, nodePorts, true)
}

func removeAll(ctx context.Context, nodePorts PortRange, drain bool) (removed []Leftover, busy int, err error) {
	var errs []error
	for _, r := range remnants(nodePorts) {
		remaining := 0
		found, err := r.find(ctx)
		if err == nil && len(found) > 0 {
			if v, ok := r.(ipvs); ok && drain {
				remaining, err = v.removeUnless(ctx, virtualServer.hasConnections)
			} else {
				err = r.remove(ctx)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		busy += remaining
		for _, l := range found {
			if remaining > 0 {
				l.Count -= remaining // the link remains as well
			}
			if remaining == 0 || l.Count > 0 {
				removed = append(removed, l)
			}
		}
	}
	return removed, busy, errors.Join(errs...)
}

// Names of kube-proxy's chains and ipsets, in all its modes and versions. Other names that begin with KUBE- belong to
// kubelet (KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-FIREWALL in filter) and to network policy controllers
// (KUBE-NWPLCY-…, KUBE-POD-FW-…, KUBE-ROUTER-…), and must stay.
var (
	chainNames = []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD",
		"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL",
		"KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
	chainPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"}
	setNames      = []string{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER",
		"KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW", "KUBE-LOAD-BALANCER-SOURCE-IP",
		"KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP",
		"KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
	}
)

// isKubeProxyChain reports whether kube-proxy creates a chain of this name in an iptables table.
func isKubeProxyChain(table, name string) bool {
	if name == "KUBE-FIREWALL" {
		return table == "nat" // of its IPVS mode; in filter it is kubelet's
	}
	return slices.Contains(chainNames, name) ||
		slices.ContainsFunc(chainPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// maxSetName is the longest name of an ipset (IPSET_MAXNAMELEN without the terminator).
const maxSetName = 31

// isKubeProxySet reports the same for an ipset. The names of IPv6 sets begin with KUBE-6-, and are truncated.
func isKubeProxySet(name string) bool {
	return slices.ContainsFunc(setNames, func(own string) bool {
		six := strings.Replace(own, "KUBE-", "KUBE-6-", 1)
		return name == own || name == six[:min(len(six), maxSetName)]
	})
}
