package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rejectTableName is the name of the reject tables, one per family. After a switch to mode nftables, VIPs stay local
// for their IPVS connections, but the rules that guarded them are gone. The reject tables reject new connections to
// them that are not for IPVS, which would otherwise reach the node's own sockets.
const rejectTableName = "sluice-reject"

// rejectPriority runs after IPVS (98 and 99), which does not return the packets that it handles.
const rejectPriority = 101

// rejectBatch bounds the addresses of one message, which may have 64 KiB.
const rejectBatch = 1000

type rejectFamily struct {
	nft.TableFamily
	name            string
	key             nft.SetDatatype
	offset, size    uint32 // of the destination address in the IP header
	icmp            byte   // protocol number
	portUnreachable uint8  // ICMP code
}

var rejectFamilies = []rejectFamily{
	{nft.TableFamilyIPv4, "ip", nft.TypeIPAddr, 16, 4, unix.IPPROTO_ICMP, 3},
	{nft.TableFamilyIPv6, "ip6", nft.TypeIP6Addr, 24, 16, unix.IPPROTO_ICMPV6, 4},
}

// setRejected makes the reject tables reject new connections to exactly these addresses. A table without addresses is
// deleted; setRejected returns the names of the tables it deleted.
func setRejected(ns int, addrs []netip.Addr) (deleted []string, err error) {
	c, err := openNFTables(ns)
	if err != nil {
		return nil, fmt.Errorf("ipvs: nftables tables %s: %w", rejectTableName, err)
	}
	for _, f := range rejectFamilies {
		var want []netip.Addr
		for _, a := range addrs {
			if a.BitLen() == int(f.size)*8 {
				want = append(want, a)
			}
		}
		gone, err := f.set(c, want)
		if err != nil {
			return deleted, fmt.Errorf("ipvs: nftables table %s %s: %w", f.name, rejectTableName, withHint(err))
		}
		if gone {
			deleted = append(deleted, "nftables table "+f.name+" "+rejectTableName)
		}
	}
	return deleted, nil
}

// set makes the table of one family contain exactly the given addresses, and reports whether it deleted the table.
func (f rejectFamily) set(c *nft.Conn, want []netip.Addr) (deleted bool, err error) {
	tables, err := c.ListTablesOfFamily(f.TableFamily)
	if err != nil {
		return false, err
	}
	t := &nft.Table{Family: f.TableFamily, Name: rejectTableName}
	exists := slices.ContainsFunc(tables, func(o *nft.Table) bool { return o.Name == t.Name })
	set := &nft.Set{Table: t, Name: "addrs", KeyType: f.key}
	switch {
	case len(want) == 0 && !exists:
		return false, nil
	case len(want) == 0:
		c.DelTable(t)
		return true, c.Flush()
	case !exists:
		if err := f.create(c, t, set); err != nil {
			return false, err
		}
	}
	elements, err := c.GetSetElements(set)
	if err != nil {
		return false, err
	}
	stale := map[netip.Addr]bool{}
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			stale[a] = true
		}
	}
	var add, del []nft.SetElement
	for _, a := range want {
		if !stale[a] {
			add = append(add, nft.SetElement{Key: a.AsSlice()})
		}
		delete(stale, a)
	}
	for a := range stale {
		del = append(del, nft.SetElement{Key: a.AsSlice()})
	}
	for _, change := range []struct {
		elements []nft.SetElement
		send     func(*nft.Set, []nft.SetElement) error
	}{{add, c.SetAddElements}, {del, c.SetDeleteElements}} {
		for batch := range slices.Chunk(change.elements, rejectBatch) {
			if err := change.send(set, batch); err != nil {
				return false, err
			}
			if err := c.Flush(); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

func (f rejectFamily) create(c *nft.Conn, t *nft.Table, set *nft.Set) error {
	c.AddTable(t)
	if err := c.AddSet(set, nil); err != nil {
		return err
	}
	accept := nft.ChainPolicyAccept
	chain := c.AddChain(&nft.Chain{
		Table: t, Name: "input", Type: nft.ChainTypeFilter, Hooknum: nft.ChainHookInput,
		Priority: nft.ChainPriorityRef(rejectPriority), Policy: &accept,
	})
	// Only what is new to conntrack: replies to connections that the node itself opened from such an address pass.
	match := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: f.size},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
	}
	rule := func(action ...expr.Any) {
		c.AddRule(&nft.Rule{Table: t, Chain: chain, Exprs: append(slices.Clone(match), action...)})
	}
	rule(&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	rule(&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{f.icmp}}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: f.portUnreachable})
	return c.Flush()
}
