package kubeproxy

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// iptablesNFT are the chains of the other modes, where iptables writes to nf_tables.
type iptablesNFT struct{}

// tableChains is an iptables table with chains of kube-proxy.
type tableChains struct {
	nfnl.Table
	chains []string // of kube-proxy
}

// iptablesTables are the tables in which kube-proxy has chains.
var iptablesTables = []string{"nat", "filter", "mangle"}

func (iptablesNFT) list(c nfTables) (out []tableChains, err error) {
	tables, err := c.list(func(name string) bool { return slices.Contains(iptablesTables, name) })
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		k := tableChains{Table: t}
		err := c.Chains(t, func(ch nfnl.Chain) {
			if ch.Hook < 0 && isKubeProxyChain(t.Name, ch.Name) {
				k.chains = append(k.chains, ch.Name)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("kube-proxy's leftovers: table %s: %w", t, err)
		}
		if len(k.chains) > 0 {
			out = append(out, k)
		}
	}
	return out, nil
}

func (n iptablesNFT) find(context.Context) (out []Leftover, err error) {
	c, err := openNFTables()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := n.list(c)
	for _, k := range list {
		out = append(out, Leftover{Location: "iptables (nf_tables), " + k.String(), Kind: "chains", Count: len(k.chains)})
	}
	return out, err
}

// maxBatch is how many messages fit into one transaction with the socket buffer of any host.
const maxBatch = 500

// remove first deletes the rules that jump to the chains, then the chains, which are unreachable by then.
func (n iptablesNFT) remove(ctx context.Context) error {
	c, err := openNFTables()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := n.list(c)
	if err != nil {
		return err
	}
	for _, k := range list {
		jumps, err := k.jumps(c)
		if err != nil {
			return err
		}
		for _, s := range []struct {
			count int
			add   func(b *nfnl.Batch, i int)
		}{
			{len(jumps), func(b *nfnl.Batch, i int) { b.DeleteRule(k.Table, jumps[i].Chain, jumps[i].Handle) }},
			{len(k.chains), func(b *nfnl.Batch, i int) { b.DeleteRule(k.Table, k.chains[i], 0) }},
			{len(k.chains), func(b *nfnl.Batch, i int) { b.DeleteChain(k.Table, k.chains[i]) }},
		} {
			for done := 0; done < s.count; {
				b := nfnl.NewBatch(c.Conn)
				for ; done < s.count && b.Count < maxBatch; done++ {
					s.add(b, done)
				}
				err := ctx.Err()
				if err == nil {
					err = b.Commit()
				}
				if err != nil {
					return fmt.Errorf("kube-proxy's leftovers: table %s: %w", k, err)
				}
			}
		}
	}
	return nil
}

// jumps returns the rules that jump to one of the chains from outside of them. It looks at verdicts only, because rules of other
// programs may contain any expression.
func (k *tableChains) jumps(c nfTables) (out []nfnl.Rule, err error) {
	chains := map[string]bool{}
	for _, name := range k.chains {
		chains[name] = true
	}
	err = c.Rules(k.Table, "", func(r nfnl.Rule) {
		for name, data := range nfnl.Exprs(r.Exprs) {
			if name != "immediate" || chains[r.Chain] || r.Handle == 0 {
				continue
			}
			if _, to, _ := nfnl.Verdict(data); chains[to] {
				out = append(out, nfnl.Rule{Chain: r.Chain, Handle: r.Handle})
				return
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: table %s: %w", k, err)
	}
	return out, nil
}
