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

// rejectTableName is the name of tables, one of each family, that stand in for the companion where it is gone and addresses
// are still here, for connections of before: they refuse what is new there and not for IPVS. Without them the node's own
// servers would answer at a load balancer's address.
const rejectTableName = "sluice-leaving"

// rejectPriority is behind IPVS (98 and 99), which does not give back what it takes.
const rejectPriority = 101

// rejectBatch is of how many addresses one message is, of 64 KiB at most.
const rejectBatch = 1000

type rejectFamily struct {
	nft.TableFamily
	name            string
	key             nft.SetDatatype
	offset, size    uint32 // of the destination in the header
	icmp            byte
	portUnreachable uint8 // code of ICMP: port unreachable
}

var rejectFamilies = []rejectFamily{
	{nft.TableFamilyIPv4, "ip", nft.TypeIPAddr, 16, 4, unix.IPPROTO_ICMP, 3},
	{nft.TableFamilyIPv6, "ip6", nft.TypeIP6Addr, 24, 16, unix.IPPROTO_ICMPV6, 4},
}

// setRejected has these addresses refuse connections, and no others, and names the tables that went as none is left.
func setRejected(ns int, addrs []netip.Addr) (removed []string, err error) {
	var options []nft.ConnOption
	if ns != 0 {
		options = append(options, nft.WithNetNSFd(ns))
	}
	c, err := nft.New(options...)
	if err != nil {
		return nil, fmt.Errorf("ipvs: tables %s: open a netlink socket: %w", rejectTableName, withHint(err))
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
			return removed, fmt.Errorf("ipvs: table %s %s: %w", f.name, rejectTableName, withHint(err))
		}
		if gone {
			removed = append(removed, "nftables table "+f.name+" "+rejectTableName)
		}
	}
	return removed, nil
}

func (f rejectFamily) set(c *nft.Conn, want []netip.Addr) (gone bool, err error) {
	tables, err := c.ListTablesOfFamily(f.TableFamily)
	if err != nil {
		return false, err
	}
	t := &nft.Table{Family: f.TableFamily, Name: rejectTableName}
	there := slices.ContainsFunc(tables, func(o *nft.Table) bool { return o.Name == t.Name })
	set := &nft.Set{Table: t, Name: "addrs", KeyType: f.key}
	switch {
	case len(want) == 0 && !there:
		return false, nil
	case len(want) == 0:
		c.DelTable(t)
		return true, c.Flush()
	case !there:
		if err := f.create(c, t, set); err != nil {
			return false, err
		}
	}
	have, err := c.GetSetElements(set)
	if err != nil {
		return false, err
	}
	were := map[netip.Addr]bool{}
	for _, e := range have {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			were[a] = true
		}
	}
	var add, del []nft.SetElement
	for _, a := range want {
		if !were[a] {
			add = append(add, nft.SetElement{Key: a.AsSlice()})
		}
		delete(were, a)
	}
	for a := range were {
		del = append(del, nft.SetElement{Key: a.AsSlice()})
	}
	for _, step := range []struct {
		list []nft.SetElement
		do   func(*nft.Set, []nft.SetElement) error
	}{{add, c.SetAddElements}, {del, c.SetDeleteElements}} {
		for part := range slices.Chunk(step.list, rejectBatch) {
			if err := step.do(set, part); err != nil {
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
	// New to conntrack: answers to what the node itself has sent from such an address go on.
	fresh := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: f.size},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
	}
	rule := func(more ...expr.Any) {
		c.AddRule(&nft.Rule{Table: t, Chain: chain, Exprs: append(slices.Clone(fresh), more...)})
	}
	rule(&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	rule(&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{f.icmp}}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: f.portUnreachable})
	return c.Flush()
}
