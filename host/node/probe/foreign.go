package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

const groupForeign = "rules of other programs"

// BaseChain is a base chain of nf_tables, also one of iptables-nft.
type BaseChain struct {
	Table    string // "ip filter"
	Name     string
	Type     string // filter, nat or route
	Hook     string // forward
	Priority int
	Drop     bool // its policy, or its last rule, drops or rejects all other packets
	Rules    int
}

func (c *BaseChain) String() string {
	return fmt.Sprintf("%s %s (hook %s, priority %d)", c.Table, c.Name, c.Hook, c.Priority)
}

// isOwnTable reports whether a table of nf_tables has a name of sluice's.
func isOwnTable(name string) bool { return name == "sluice" || strings.HasPrefix(name, "sluice-") }

// hooks are the names of the hooks of IP packets, by NF_INET_*.
var hooks = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// ForeignChains lists the base chains of other programs for IP packets in the network namespace of the calling thread. Rules of
// legacy iptables are not in nf_tables.
func ForeignChains() ([]BaseChain, error) {
	c, err := nfnl.Open(0, nfnl.DefaultSendBuffer)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.AllowInconsistent = true
	var all []nfnl.Chain
	err = c.Chains(nfnl.Table{Family: unix.AF_UNSPEC}, func(ch nfnl.Chain) {
		ip := slices.Contains([]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET}, ch.Table.Family)
		if ip && ch.Hook >= 0 && ch.Hook < len(hooks) && !isOwnTable(ch.Table.Name) {
			all = append(all, ch)
		}
	})
	if err != nil {
		return nil, err
	}
	var out []BaseChain
	for _, ch := range all {
		b := BaseChain{Table: ch.Table.String(), Name: ch.Name, Type: ch.Type, Hook: hooks[ch.Hook], Priority: ch.Priority}
		last := false
		if err := c.Rules(ch.Table, ch.Name, func(r nfnl.Rule) { b.Rules, last = b.Rules+1, dropsAll(r.Exprs) }); err != nil {
			return nil, fmt.Errorf("%s %s: %w", ch.Table, ch.Name, err)
		}
		b.Drop = ch.Drop || last
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b BaseChain) int { return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}

// dropsAll reports whether a rule of these expressions drops or rejects every packet, as the last one of firewalld's chains does.
func dropsAll(exprs []byte) (drops bool) {
	for name, data := range nfnl.Exprs(exprs) {
		switch name {
		case "counter", "log":
		case "reject":
			drops = true
		case "immediate":
			if code, _, ok := nfnl.Verdict(data); !ok || code != nfDrop {
				return false
			}
			drops = true
		case "target": // of iptables-nft
			if nfnl.Text(nfnl.Attr(data, unix.NFTA_TARGET_NAME)) != "REJECT" {
				return false
			}
			drops = true
		default:
			return false // a condition, or another action
		}
	}
	return drops
}

const nfDrop = 0 // NF_DROP

// Foreign reports chains of other programs that may drop connections to Services, or translate their addresses first. err is that
// of listing them.
func Foreign(chains []BaseChain, err error) []Finding {
	if err != nil {
		return []Finding{{Group: groupForeign, Name: "nf_tables", State: Unknown, Found: err.Error()}}
	}
	policies := Finding{Group: groupForeign, Name: "chains that drop by default", State: OK}
	nat := Finding{Group: groupForeign, Name: "NAT before sluice's", State: OK}
	var drop, before, beside []string
	forward := false
	for i := range chains {
		c := &chains[i]
		switch {
		case c.Type == "filter" && c.Drop && (c.Hook == "input" || c.Hook == "forward"):
			drop = append(drop, c.String())
			forward = forward || c.Hook == "forward"
		case c.Type == "nat" && c.Rules > 0 && (c.Hook == "prerouting" || c.Hook == "output"):
			if c.Priority <= backend.NATPriority { // of the same priority, the newest is first
				before = append(before, c.String())
			} else {
				beside = append(beside, c.String())
			}
		}
	}
	if len(drop) > 0 {
		policies.State, policies.Found = Warning, shortList(drop)
		policies.Impact = "in mode nftables, Services whose endpoints are processes of this node work only as far as a rule of these chains accepts, in mode ipvs all Services"
		if forward {
			policies.Impact = "connections to endpoints work only as far as a rule of these chains accepts: unlike kube-proxy in mode iptables, sluice adds none"
		}
		policies.Remedy = "accept forwarded packets from and to the Pods' CIDRs, and new connections with ct status dnat; in mode ipvs also incoming packets to the ports of Services"
	}
	switch {
	case len(before) > 0:
		nat.State, nat.Found = Warning, shortList(before)
		nat.Impact = "where a rule of these chains translates the address of a Service, the Service is not balanced by sluice"
		nat.Remedy = "limit the rules to addresses and ports that no Service has"
	case len(beside) > 0:
		nat.Found = "none; after it: " + shortList(beside)
	}
	return []Finding{policies, nat}
}

// shortList joins at most five texts.
func shortList(all []string) string {
	if n := len(all); n > 5 {
		all = append(slices.Clone(all[:5]), fmt.Sprintf("and %d more", n-5))
	}
	return strings.Join(all, ", ")
}
