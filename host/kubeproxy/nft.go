package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var families = []struct {
	name   string
	family nftables.TableFamily
}{{"ip", nftables.TableFamilyIPv4}, {"ip6", nftables.TableFamilyIPv6}}

// tables gives the tables of IPv4 and IPv6; none where the kernel has no nf_tables.
func tables(c *nftables.Conn) ([]*nftables.Table, error) {
	var all []*nftables.Table
	for _, f := range families {
		list, err := c.ListTablesOfFamily(f.family)
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
			continue
		case err != nil:
			return nil, fmt.Errorf("kube-proxy's leftovers: list tables of %s: %w", f.name, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

func label(t *nftables.Table) string {
	for _, f := range families {
		if f.family == t.Family {
			return f.name + " " + t.Name
		}
	}
	return t.Name
}

func connect() (*nftables.Conn, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: open a netlink socket: %w", err)
	}
	return c, nil
}

// nftTables are what the nftables mode makes: a table of its own in each family.
type nftTables struct{}

const ownTable = "kube-proxy"

func (nftTables) list() (*nftables.Conn, []*nftables.Table, error) {
	c, err := connect()
	if err != nil {
		return nil, nil, err
	}
	all, err := tables(c)
	return c, slices.DeleteFunc(all, func(t *nftables.Table) bool { return t.Name != ownTable }), err
}

func (n nftTables) find(context.Context) (out []Leftover, err error) {
	_, list, err := n.list()
	for _, t := range list {
		out = append(out, Leftover{Where: "nftables, table " + label(t)})
	}
	return out, err
}

func (n nftTables) remove(context.Context) error {
	c, list, err := n.list()
	if err != nil {
		return err
	}
	for _, t := range list {
		c.DelTable(t)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("kube-proxy's leftovers: delete table %s: %w", label(t), err)
		}
	}
	return nil
}

// iptablesNFT are the chains that the other modes make through iptables where that writes to nf_tables.
type iptablesNFT struct{}

// kubeTable is a table of iptables with chains of kube-proxy's.
type kubeTable struct {
	table  *nftables.Table
	chains []*nftables.Chain // kube-proxy's
}

func (iptablesNFT) list() (*nftables.Conn, []kubeTable, error) {
	c, err := connect()
	if err != nil {
		return nil, nil, err
	}
	all, err := tables(c)
	if err != nil {
		return nil, nil, err
	}
	var out []kubeTable
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
			k := kubeTable{table: t}
			for _, ch := range chains {
				if ch.Table.Name == t.Name && ch.Hooknum == nil && isChain(t.Name, ch.Name) {
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

// iptablesTables are those that kube-proxy has chains in.
var iptablesTables = []string{"nat", "filter", "mangle"}

func (n iptablesNFT) find(context.Context) (out []Leftover, err error) {
	_, list, err := n.list()
	for _, k := range list {
		out = append(out, Leftover{Where: "iptables (nf_tables), " + label(k.table), What: "chains", Count: len(k.chains)})
	}
	return out, err
}

// chunk is how many messages fit a transaction with the socket buffers of any host.
const chunk = 500

// remove takes the rules away that lead to kube-proxy's chains, at once; then the chains, which nothing leads to.
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
			what string
			n    int
			do   func(i int) error
		}{
			{"delete the rules that lead to its chains", len(jumps), func(i int) error { return c.DelRule(jumps[i]) }},
			{"flush its chains", len(k.chains), func(i int) error { c.FlushChain(k.chains[i]); return nil }},
			{"delete its chains", len(k.chains), func(i int) error { c.DelChain(k.chains[i]); return nil }},
		}
		for _, s := range steps {
			for i := range s.n {
				err := s.do(i)
				if err == nil && (i%chunk == chunk-1 || i == s.n-1) {
					if err = ctx.Err(); err == nil {
						err = c.Flush()
					}
				}
				if err != nil {
					return fmt.Errorf("kube-proxy's leftovers: table %s: %s: %w", label(k.table), s.what, err)
				}
			}
		}
	}
	return nil
}

// jumpsTo gives the rules of a table that lead to one of the chains and are in none of them. Of the expressions only
// verdicts are looked at: there may be anything else in other programs' rules.
func jumpsTo(t *nftables.Table, chains map[string]bool) ([]*nftables.Rule, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddRawData(append([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0},
		nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(t.Name)).Serialize()...))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: list rules of table %s: %w", label(t), err)
	}
	var out []*nftables.Rule
	for _, m := range messages {
		if len(m) < 4 {
			continue
		}
		a := attrs(m[4:])
		chain, handle := text(a[unix.NFTA_RULE_CHAIN]), a[unix.NFTA_RULE_HANDLE]
		if text(a[unix.NFTA_RULE_TABLE]) != t.Name || chains[chain] || len(handle) != 8 {
			continue
		}
		if leadsTo(a[unix.NFTA_RULE_EXPRESSIONS], chains) {
			out = append(out, &nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chain, Table: t}, Handle: binary.BigEndian.Uint64(handle)})
		}
	}
	return out, nil
}

func leadsTo(expressions []byte, chains map[string]bool) bool {
	for _, e := range each(expressions) {
		a := attrs(e)
		if text(a[unix.NFTA_EXPR_NAME]) != "immediate" {
			continue
		}
		verdict := attrs(attrs(attrs(a[unix.NFTA_EXPR_DATA])[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VERDICT])
		if chains[text(verdict[unix.NFTA_VERDICT_CHAIN])] {
			return true
		}
	}
	return false
}

// each walks over attributes; it ends early at one that is cut off.
func each(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.NLA_HDRLEN || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[unix.NLA_HDRLEN:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// attrs gives attributes by type.
func attrs(b []byte) map[uint16][]byte { return maps.Collect(each(b)) }
