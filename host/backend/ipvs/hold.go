package ipvs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"golang.org/x/sys/unix"
)

// holdTableName is the name of the hold tables, one per family. While the kernel replaces the scheduler of a virtual server, this has none for
// an RCU grace period, and IPVS answers new connections with an ICMP error. The hold tables drop their first packets before IPVS sees them,
// so that clients repeat them.
const holdTableName = "sluice-hold"

const (
	// holdTimeout ends a hold in the kernel, should sluice be killed meanwhile.
	holdTimeout = 2 * time.Second
	// heldAtOnce bounds how long a hold takes: each change of a scheduler waits for a grace period, some 10 to 30 ms.
	heldAtOnce = 8
	// IPVS is at 98 in LOCAL_IN and at -98 in LOCAL_OUT, after the rules that set the mark of a pool.
	holdInputPriority, holdOutputPriority = 96, -99
)

// holdNew holds new connections to virtual servers until release is called. After an error, nothing is held.
func (b *Backend) holdNew(keys []serverKey) (release func(), err error) {
	nothing := func() {}
	if len(keys) == 0 {
		return nothing, nil
	}
	c, err := openNFTables(b.o.Netns)
	if err != nil {
		return nothing, fmt.Errorf("ipvs: nftables tables %s: %w", holdTableName, err)
	}
	for _, f := range rejectFamilies {
		of := slices.DeleteFunc(slices.Clone(keys), func(k serverKey) bool { return k.v6 != (f.TableFamily == nft.TableFamilyIPv6) })
		if len(of) == 0 {
			continue
		}
		if err := f.hold(c, of, b.o.MarkMask); err != nil {
			return nothing, fmt.Errorf("ipvs: nftables table %s %s: %w", f.name, holdTableName, err)
		}
	}
	if err := c.Flush(); err != nil {
		return nothing, fmt.Errorf("ipvs: nftables tables %s: %w", holdTableName, withHint(err))
	}
	rules.RCUBarrier() // packets on their way to IPVS
	return func() {
		if _, err := deleteHolds(b.o.Netns); err != nil {
			b.log.Warn("the hold of new connections ends by itself", "after", holdTimeout, "err", err)
		}
	}, nil
}

// hold adds the messages that hold new connections to virtual servers of the family.
func (f rejectFamily) hold(c *nft.Conn, keys []serverKey, markMask uint32) error {
	t := c.AddTable(&nft.Table{Family: f.TableFamily, Name: holdTableName})
	addrs := &nft.Set{Table: t, Name: "addrs", KeyType: nft.MustConcatSetType(f.key, nft.TypeInetProto, nft.TypeInetService), Concatenation: true, HasTimeout: true}
	marks := &nft.Set{Table: t, Name: "marks", KeyType: nft.TypeMark, KeyByteOrder: binaryutil.NativeEndian, HasTimeout: true}
	var atAddrs, atMarks []nft.SetElement
	for _, k := range keys {
		e := nft.SetElement{Timeout: holdTimeout}
		if k.mark != 0 {
			e.Key = binaryutil.NativeEndian.PutUint32(k.mark)
			atMarks = append(atMarks, e)
			continue
		}
		e.Key = append(k.addr.AsSlice(), byte(k.proto), 0, 0, 0)
		e.Key = append(binary.BigEndian.AppendUint16(e.Key, k.port), 0, 0)
		atAddrs = append(atAddrs, e)
	}
	if err := c.AddSet(addrs, atAddrs); err != nil {
		return err
	}
	if err := c.AddSet(marks, atMarks); err != nil {
		return err
	}
	const first = unix.NFT_REG32_00
	proto := first + f.size/4
	isNew := []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
	byAddr := append(slices.Clone(isNew),
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: f.size},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{DestRegister: proto + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: first, SetName: addrs.Name, SetID: addrs.ID}, &expr.Verdict{Kind: expr.VerdictDrop})
	byMark := append(slices.Clone(isNew),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(markMask), Xor: make([]byte, 4)},
		&expr.Lookup{SourceRegister: 1, SetName: marks.Name, SetID: marks.ID}, &expr.Verdict{Kind: expr.VerdictDrop})
	for name, at := range map[string]struct {
		hook     *nft.ChainHook
		priority nft.ChainPriority
	}{"input": {nft.ChainHookInput, holdInputPriority}, "output": {nft.ChainHookOutput, holdOutputPriority}} {
		chain := c.AddChain(&nft.Chain{Table: t, Name: name, Type: nft.ChainTypeFilter, Hooknum: at.hook, Priority: &at.priority})
		c.AddRule(&nft.Rule{Table: t, Chain: chain, Exprs: byAddr})
		c.AddRule(&nft.Rule{Table: t, Chain: chain, Exprs: byMark})
	}
	return nil
}

// openNFTables returns a connection to the nf_tables of a network namespace.
func openNFTables(ns int) (*nft.Conn, error) {
	var options []nft.ConnOption
	if ns != 0 {
		options = append(options, nft.WithNetNSFd(ns))
	}
	c, err := nft.New(options...)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", withHint(err))
	}
	return c, nil
}

// deleteHolds deletes the hold tables, and returns their names.
func deleteHolds(ns int) (deleted []string, err error) {
	c, err := openNFTables(ns)
	if err != nil {
		return nil, fmt.Errorf("ipvs: nftables tables %s: %w", holdTableName, err)
	}
	for _, f := range rejectFamilies {
		tables, err := c.ListTablesOfFamily(f.TableFamily)
		if err != nil {
			return nil, fmt.Errorf("ipvs: list nftables tables: %w", withHint(err))
		}
		for _, t := range tables {
			if t.Name == holdTableName {
				c.DelTable(t)
				deleted = append(deleted, "nftables table "+f.name+" "+holdTableName)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return nil, fmt.Errorf("ipvs: delete nftables tables %s: %w", holdTableName, withHint(err))
	}
	return deleted, nil
}
