package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/sluice-proxy/sluice/host/backend"
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

var (
	families = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}
	hooks    = map[nftables.ChainHook]string{
		*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookInput: "input", *nftables.ChainHookForward: "forward",
		*nftables.ChainHookOutput: "output", *nftables.ChainHookPostrouting: "postrouting",
	}
)

// ForeignChains lists the base chains of other programs for IP packets in the network namespace of the calling thread. Rules of legacy
// iptables are not in nf_tables.
func ForeignChains() ([]BaseChain, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	all, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	var out []BaseChain
	for _, ch := range all {
		family := families[ch.Table.Family]
		if ch.Hooknum == nil || family == "" || isOwnTable(ch.Table.Name) {
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, fmt.Errorf("list the rules of %s %s %s: %w", family, ch.Table.Name, ch.Name, err)
		}
		b := BaseChain{Table: family + " " + ch.Table.Name, Name: ch.Name, Type: string(ch.Type), Hook: hooks[*ch.Hooknum], Rules: len(rules)}
		if ch.Priority != nil {
			b.Priority = int(*ch.Priority)
		}
		b.Drop = ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop || len(rules) > 0 && dropsAll(rules[len(rules)-1])
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b BaseChain) int { return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}

// dropsAll reports whether a rule drops or rejects every packet, as the last one of firewalld's chains does.
func dropsAll(r *nftables.Rule) (drops bool) {
	for _, e := range r.Exprs {
		switch x := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			drops = true
		case *expr.Verdict:
			if x.Kind != expr.VerdictDrop {
				return false
			}
			drops = true
		case *expr.Target: // of iptables-nft
			if x.Name != "REJECT" {
				return false
			}
			drops = true
		default:
			return false // a condition, or another action
		}
	}
	return drops
}

// Foreign reports chains of other programs that may drop connections to Services, or translate their addresses first. err is that of
// listing them.
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
