package kubeproxy

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// iptablesNFT are the chains of the other modes, where iptables writes to nf_tables.
type iptablesNFT struct{}

// tableChains is an iptables table with chains of kube-proxy.
type tableChains struct {
	table  *nftables.Table
	chains []*nftables.Chain // of kube-proxy
}

func (iptablesNFT) list() (*nftables.Conn, []tableChains, error) {
	c, err := openNetlink()
	if err != nil {
		return nil, nil, err
	}
	all, err := listTables(c)
	if err != nil {
		return nil, nil, err
	}
	var out []tableChains
	for _, f := range families {
		var chains []*nftables.Chain
		for _, t := range all {
			if t.Family != f.family || !slices.Contains(iptablesTables, t.Name) {
				continue
			}
			if chains == nil {
				if chains, err = c.ListChainsOfTableFamily(f.family); err != nil {
					return nil, nil, fmt.Errorf("kube-proxy's leftovers: list chains of %s: %w", f.name, err)
				}
			}
			k := tableChains{table: t}
			for _, ch := range chains {
				if ch.Table.Name == t.Name && ch.Hooknum == nil && isKubeProxyChain(t.Name, ch.Name) {
					k.chains = append(k.chains, ch)
				}
			}
			if len(k.chains) > 0 {
				out = append(out, k)
			}
		}
	}
	return c, out, nil
}

// iptablesTables are the tables in which kube-proxy has chains.
var iptablesTables = []string{"nat", "filter", "mangle"}

func (n iptablesNFT) find(context.Context) (out []Leftover, err error) {
	_, list, err := n.list()
	for _, k := range list {
		out = append(out, Leftover{Location: "iptables (nf_tables), " + tableLabel(k.table), Kind: "chains", Count: len(k.chains)})
	}
	return out, err
}

// maxBatch is how many messages fit into one transaction with the socket buffer of any host.
const maxBatch = 500

// remove first deletes the rules that jump to the chains, then the chains, which are unreachable by then.
func (n iptablesNFT) remove(ctx context.Context) error {
	c, list, err := n.list()
	if err != nil {
		return err
	}
	for _, k := range list {
		names := map[string]bool{}
		for _, ch := range k.chains {
			names[ch.Name] = true
		}
		jumps, err := jumpsTo(k.table, names)
		if err != nil {
			return err
		}
		steps := []struct {
			name  string
			count int
			do    func(i int) error
		}{
			{"delete rules that jump to its chains", len(jumps), func(i int) error { return c.DelRule(jumps[i]) }},
			{"flush its chains", len(k.chains), func(i int) error { c.FlushChain(k.chains[i]); return nil }},
			{"delete its chains", len(k.chains), func(i int) error { c.DelChain(k.chains[i]); return nil }},
		}
		for _, s := range steps {
			for i := range s.count {
				err := s.do(i)
				if err == nil && (i%maxBatch == maxBatch-1 || i == s.count-1) {
					if err = ctx.Err(); err == nil {
						err = c.Flush()
					}
				}
				if err != nil {
					return fmt.Errorf("kube-proxy's leftovers: table %s: %s: %w", tableLabel(k.table), s.name, err)
				}
			}
		}
	}
	return nil
}

// jumpsTo returns the rules of a table that jump to one of the chains from outside of them. It decodes verdicts only, because
// rules of other programs may contain any expression.
func jumpsTo(t *nftables.Table, chains map[string]bool) ([]*nftables.Rule, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddRawData(append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0},
		nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(t.Name)).Serialize()...))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: list rules of table %s: %w", tableLabel(t), err)
	}
	var out []*nftables.Rule
	for _, m := range messages {
		if len(m) < 4 {
			continue
		}
		a := attrsByType(m[4:])
		chain, handle := cString(a[unix.NFTA_RULE_CHAIN]), a[unix.NFTA_RULE_HANDLE]
		if cString(a[unix.NFTA_RULE_TABLE]) != t.Name || chains[chain] || len(handle) != 8 {
			continue
		}
		if jumpsToAny(a[unix.NFTA_RULE_EXPRESSIONS], chains) {
			out = append(out, &nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chain, Table: t}, Handle: binary.BigEndian.Uint64(handle)})
		}
	}
	return out, nil
}

func jumpsToAny(expressions []byte, chains map[string]bool) bool {
	for _, e := range attrs(expressions) {
		a := attrsByType(e)
		if cString(a[unix.NFTA_EXPR_NAME]) != "immediate" {
			continue
		}
		verdict := attrsByType(attrsByType(attrsByType(a[unix.NFTA_EXPR_DATA])[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VERDICT])
		if chains[cString(verdict[unix.NFTA_VERDICT_CHAIN])] {
			return true
		}
	}
	return false
}
