package nfnl

import (
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// Attributes that golang.org/x/sys/unix lacks, from linux/netfilter/nf_tables.h.
const (
	nftaTableUserdata = 6
	nftaTableOwner    = 7
)

// TableOwner is the flag of a table that belongs to the socket that created it, and ends with that.
const TableOwner = 2

// Table identifies a table. Family is an NFPROTO_*.
type Table struct {
	Family byte
	Name   string
}

// String returns the table as nft writes it, such as "ip sluice".
func (t Table) String() string {
	switch t.Family {
	case unix.NFPROTO_IPV4:
		return "ip " + t.Name
	case unix.NFPROTO_IPV6:
		return "ip6 " + t.Name
	case unix.NFPROTO_INET:
		return "inet " + t.Name
	}
	return t.Name
}

// Chain is a chain of a table.
type Chain struct {
	Table          Table
	Name           string
	Hook, Priority int    // of a base chain; Hook is -1 if it is none
	Type           string // of a base chain: filter, nat or route
	Drop           bool   // the policy of a base chain is to drop
}

// Rule is a rule of a chain.
type Rule struct {
	Chain  string
	Handle uint64
	Exprs  []byte // encoded expressions
}

// NewTable appends the message that creates a table; flags are NLM_F_*.
func (b *Batch) NewTable(flags uint16, t Table, tableFlags uint32, comment string) {
	b.Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|flags, t.Family, "create table", t.String())
	b.PutString(unix.NFTA_TABLE_NAME, t.Name)
	b.PutUint32(unix.NFTA_TABLE_FLAGS, tableFlags)
	if comment != "" {
		b.PutBytes(nftaTableUserdata, append(append([]byte{udComment, byte(len(comment) + 1)}, comment...), 0))
	}
	b.End()
}

// DeleteTable appends the message that deletes a table.
func (b *Batch) DeleteTable(t Table) {
	b.Message(unix.NFT_MSG_DELTABLE, 0, t.Family, "delete table", t.String())
	b.PutString(unix.NFTA_TABLE_NAME, t.Name)
	b.End()
}

// NewChain appends the message that creates a chain.
func (b *Batch) NewChain(c *Chain) {
	b.Message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Table.Family, "create chain", c.Name)
	b.PutString(unix.NFTA_CHAIN_TABLE, c.Table.Name)
	b.PutString(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook >= 0 {
		at := b.BeginNest(unix.NFTA_CHAIN_HOOK)
		b.PutUint32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Hook))
		b.PutUint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.Priority)))
		b.EndNest(at)
		b.PutUint32(unix.NFTA_CHAIN_POLICY, policyAccept)
		b.PutString(unix.NFTA_CHAIN_TYPE, c.Type)
	}
	b.End()
}

// Policies of base chains: NF_DROP, NF_ACCEPT.
const policyDrop, policyAccept = 0, 1

// DeleteChain appends the message that deletes a chain.
func (b *Batch) DeleteChain(t Table, name string) {
	b.Message(unix.NFT_MSG_DELCHAIN, 0, t.Family, "delete chain", t.String()+" "+name)
	b.PutString(unix.NFTA_CHAIN_TABLE, t.Name)
	b.PutString(unix.NFTA_CHAIN_NAME, name)
	b.End()
}

// NewRule appends the message that adds a rule of encoded expressions to the end of a chain.
func (b *Batch) NewRule(t Table, chain string, exprs []byte) {
	b.Message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family, "add a rule to chain", chain)
	b.PutString(unix.NFTA_RULE_TABLE, t.Name)
	b.PutString(unix.NFTA_RULE_CHAIN, chain)
	at := b.BeginNest(unix.NFTA_RULE_EXPRESSIONS)
	b.Buf = append(b.Buf, exprs...)
	b.EndNest(at)
	b.End()
}

// DeleteRule appends the message that deletes a rule; without a handle, all rules of the chain.
func (b *Batch) DeleteRule(t Table, chain string, handle uint64) {
	verb := "delete a rule of chain"
	if handle == 0 {
		verb = "clear chain"
	}
	b.Message(unix.NFT_MSG_DELRULE, 0, t.Family, verb, chain)
	b.PutString(unix.NFTA_RULE_TABLE, t.Name)
	b.PutString(unix.NFTA_RULE_CHAIN, chain)
	if handle != 0 {
		b.PutBytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	}
	b.End()
}

// Tables calls f with each table of a family, and its comment.
func (c *Conn) Tables(family byte, f func(t Table, comment string)) error {
	return c.list("tables", unix.NFT_MSG_GETTABLE, Table{Family: family}, [2]uint16{}, "", func(family byte, b []byte) {
		if t := (Table{family, Text(Attr(b, unix.NFTA_TABLE_NAME))}); t.Name != "" {
			f(t, Comment(Attr(b, nftaTableUserdata)))
		}
	})
}

// TableOwner returns the port ID of the socket that owns a table, 0 if none does, and the table's comment.
func (c *Conn) TableOwner(t Table) (owner uint32, comment string, err error) {
	var m Encoder
	m.Begin(unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, c.NextSeq(), t.Family)
	m.PutString(unix.NFTA_TABLE_NAME, t.Name)
	m.End()
	err = c.Dump(m.Buf, func(b []byte) {
		owner, comment = Uint32(Attr(b[4:], nftaTableOwner)), Comment(Attr(b[4:], nftaTableUserdata))
	})
	return owner, comment, err
}

// Chains calls f with each chain of a table; without its name, with those of all tables of a family, and with AF_UNSPEC of all
// families.
func (c *Conn) Chains(t Table, f func(Chain)) error {
	return c.list("chains", unix.NFT_MSG_GETCHAIN, t, [2]uint16{unix.NFTA_CHAIN_TABLE}, "", func(family byte, b []byte) {
		ch := Chain{Table: Table{family, Text(Attr(b, unix.NFTA_CHAIN_TABLE))}, Name: Text(Attr(b, unix.NFTA_CHAIN_NAME)), Hook: -1}
		if t.Name != "" && ch.Table != t {
			return // some kernels list all tables
		}
		if h := Attr(b, unix.NFTA_CHAIN_HOOK); h != nil {
			ch.Hook, ch.Priority = int(Uint32(Attr(h, unix.NFTA_HOOK_HOOKNUM))), int(int32(Uint32(Attr(h, unix.NFTA_HOOK_PRIORITY))))
			policy := Attr(b, unix.NFTA_CHAIN_POLICY)
			ch.Type, ch.Drop = Text(Attr(b, unix.NFTA_CHAIN_TYPE)), policy != nil && Uint32(policy) == policyDrop
		}
		f(ch)
	})
}

// Rules calls f with each rule of a table, or of one chain if that has a name. The rule's expressions are valid until f returns.
func (c *Conn) Rules(t Table, chain string, f func(Rule)) error {
	return c.list("rules", unix.NFT_MSG_GETRULE, t, [2]uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN}, chain, func(_ byte, b []byte) {
		r := Rule{Chain: Text(Attr(b, unix.NFTA_RULE_CHAIN)), Exprs: Attr(b, unix.NFTA_RULE_EXPRESSIONS)}
		if Text(Attr(b, unix.NFTA_RULE_TABLE)) != t.Name || chain != "" && r.Chain != chain {
			return // some kernels list more
		}
		if h := Attr(b, unix.NFTA_RULE_HANDLE); len(h) == 8 {
			r.Handle = binary.BigEndian.Uint64(h)
		}
		f(r)
	})
}

// list dumps the objects of a family. Those of one table, and of one chain, are asked for with these attributes, if they have
// names.
func (c *Conn) list(what string, kind uint16, t Table, attrs [2]uint16, chain string, f func(family byte, attrs []byte)) error {
	var m Encoder
	m.Begin(kind, unix.NLM_F_DUMP, c.NextSeq(), t.Family)
	for i, name := range []string{t.Name, chain} {
		if name != "" {
			m.PutString(attrs[i], name)
		}
	}
	m.End()
	err := c.Dump(m.Buf, func(b []byte) {
		if t.Family == unix.AF_UNSPEC || b[0] == t.Family {
			f(b[0], b[4:])
		}
	})
	if err != nil {
		return fmt.Errorf("nftables: list %s: %w", what, Hint(err))
	}
	return nil
}

// Exprs yields the names and attributes of encoded expressions.
func Exprs(b []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, e := range Attrs(b) {
			if !yield(Text(Attr(e, unix.NFTA_EXPR_NAME)), Attr(e, unix.NFTA_EXPR_DATA)) {
				return
			}
		}
	}
}

// Verdict decodes the verdict of an expression "immediate". ok is false if it loads a value.
func Verdict(data []byte) (code int32, chain string, ok bool) {
	v := Attr(Attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	return int32(Uint32(Attr(v, unix.NFTA_VERDICT_CODE))), Text(Attr(v, unix.NFTA_VERDICT_CHAIN)), v != nil
}
