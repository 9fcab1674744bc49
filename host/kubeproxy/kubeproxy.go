// Package kubeproxy finds kube-proxy on this node: whether it runs, and what it has left in the kernel. It removes the
// latter, and nothing else.
//
// Two proxies translate the same packets, and the one whose chains came last has them: the kernel asks it first. So
// sluice takes over at its first transaction; but what kube-proxy wrote later, or a Service that sluice does not have,
// goes on as it was when kube-proxy was stopped, until that is removed.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Leftover is something that kube-proxy has left behind.
type Leftover struct {
	Where string // such as "iptables (nf_tables), ip nat"
	What  string // such as "chains"; "" when Where says it all
	Count int
}

// String is like "iptables (nf_tables), ip nat: 12 chains".
func (l Leftover) String() string {
	if l.What == "" {
		return l.Where
	}
	return fmt.Sprintf("%s: %d %s", l.Where, l.Count, l.What)
}

// place is where kube-proxy may have left something.
type place interface {
	find(ctx context.Context) ([]Leftover, error)
	// remove takes away what find finds; what is not there any more is no error.
	remove(ctx context.Context) error
}

// places are in the order of removal: what leads to other objects first.
func places() []place {
	return []place{nftTables{}, iptablesNFT{}, iptablesLegacy{}, ipvs{}, ipsets{}}
}

// Find lists what is there, in the network namespace of the calling thread. An error is about places that could not be
// looked at; what was found in others is returned with it.
func Find(ctx context.Context) ([]Leftover, error) {
	var all []Leftover
	var errs []error
	for _, p := range places() {
		found, err := p.find(ctx)
		all, errs = append(all, found...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Remove takes away all that Find finds. It does what it can; the error names what stays. It may be called again.
func Remove(ctx context.Context) (removed []Leftover, err error) {
	removed, _, err = take(ctx, false)
	return removed, err
}

// Drain is Remove, but for virtual servers that have open connections: those stay until they have none, with their
// addresses and the link, and busy says how many there are. They are not for new connections: whoever forwards by now
// has those first. Call it again from time to time until there are none.
func Drain(ctx context.Context) (removed []Leftover, busy int, err error) {
	return take(ctx, true)
}

func take(ctx context.Context, spareBusy bool) (removed []Leftover, busy int, err error) {
	var errs []error
	for _, p := range places() {
		left := 0
		found, err := p.find(ctx)
		if err == nil && len(found) > 0 {
			if v, ok := p.(ipvs); ok && spareBusy {
				left, err = v.take(ctx, server.busy)
			} else {
				err = p.remove(ctx)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		busy += left
		for _, l := range found {
			if left > 0 {
				l.Count -= left // the link, which is one, stays then
			}
			if left == 0 || l.Count > 0 {
				removed = append(removed, l)
			}
		}
	}
	return removed, busy, errors.Join(errs...)
}

// Of the names that begin with KUBE-, kubelet has some too (KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-FIREWALL in
// filter), and so have network policy programs (KUBE-NWPLCY-…, KUBE-POD-FW-…, KUBE-ROUTER-…). They are not ours to
// take, so these are the ones that kube-proxy makes, in any of its modes and versions.
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

// isChain tells whether kube-proxy makes a chain of this name in an iptables table.
func isChain(table, name string) bool {
	if name == "KUBE-FIREWALL" {
		return table == "nat" // of the IPVS mode; in filter it is kubelet's
	}
	return slices.Contains(chainNames, name) ||
		slices.ContainsFunc(chainPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// maxSetName is how long the name of an ipset can be.
const maxSetName = 31

// isSet tells the same of an ipset; those of IPv6 have a 6 after KUBE-, and may be cut off.
func isSet(name string) bool {
	return slices.ContainsFunc(setNames, func(own string) bool {
		six := strings.Replace(own, "KUBE-", "KUBE-6-", 1)
		return name == own || name == six[:min(len(six), maxSetName)]
	})
}
