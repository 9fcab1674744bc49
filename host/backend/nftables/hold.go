package nftables

import (
	"errors"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// holdName is the name of the hold tables, one per family. While the kernel replaces the scheduler of a virtual server, this has
// none for an RCU grace period, and IPVS answers new connections with an ICMP error. The hold tables drop their first packets
// before IPVS sees them, so that clients repeat them.
const holdName = "sluice-hold"

// HoldTimeout ends a hold in the kernel, should sluice be killed meanwhile.
const HoldTimeout = 2 * time.Second

// IPVS is at 98 in LOCAL_IN and at -98 in LOCAL_OUT, after the rules that set the mark of a pool.
const holdInputPriority, holdOutputPriority = 96, -99

// Held names new connections by their destination, or by their packet mark if that is not 0.
type Held struct {
	At   plan.Key
	Mark uint32
	V6   bool
}

// Hold drops the first packets of new connections until Release. markMask has the bits of marks. After an error, nothing is held.
func Hold(netns int, list []Held, markMask uint32) error {
	err := withCompanions(netns, holdName, func(both []*companion) error {
		out := nfnl.NewBatch(both[0].conn)
		for _, t := range both {
			if err := t.hold(out, slices.DeleteFunc(slices.Clone(list), func(h Held) bool { return h.V6 != (t.family == model.IPv6) }), markMask); err != nil {
				return err
			}
		}
		return out.Commit()
	})
	if err == nil {
		rcuBarrier() // packets on their way to IPVS
	}
	return err
}

// hold appends the messages that replace the table by one that holds these connections.
func (t *companion) hold(out *nfnl.Batch, list []Held, markMask uint32) error {
	if err := t.deleteIfExists(out); err != nil || len(list) == 0 {
		return err
	}
	addrs := &set{name: "addrs", key: []field{ipv4Field, protoField, portField}, flags: unix.NFT_SET_TIMEOUT, exists: true}
	if t.family == model.IPv6 {
		addrs.key[0] = ipv6Field
	}
	marks := (&set{name: "marks", key: []field{markField}, flags: unix.NFT_SET_TIMEOUT, exists: true}).hostOrder()
	for _, h := range list {
		if h.Mark != 0 {
			marks.adds.Add(nfnl.Element{Key: native(h.Mark), Timeout: HoldTimeout}, "")
		} else {
			addrs.adds.Add(nfnl.Element{Key: frontendKey(nil, h.At), Timeout: HoldTimeout}, "")
		}
	}
	out.NewTable(unix.NLM_F_EXCL, t.Table, 0, "")
	for i, s := range []*set{addrs, marks} {
		t.newSet(out, s, uint32(i+1))
		out.PutElements(unix.NFT_MSG_NEWSETELEM, t.Table, s.name, &s.adds, "add")
	}
	isNew := func() *ruleBuilder { return newRule(t.family).ctNew() }
	rules := []*ruleBuilder{isNew().frontendKey(byAddress).in(addrs).drop(), isNew().markBits(markMask).in(marks).drop()}
	return errors.Join(
		t.putChain(out, chain{name: "input", hook: unix.NF_INET_LOCAL_IN, priority: holdInputPriority, filter: true, rules: rules}),
		t.putChain(out, chain{name: "output", hook: unix.NF_INET_LOCAL_OUT, priority: holdOutputPriority, filter: true, rules: rules}))
}

// Release ends what Hold, of this process or of one that was killed, has begun.
func Release(netns int) error {
	return withCompanions(netns, holdName, func(both []*companion) error {
		out := nfnl.NewBatch(both[0].conn)
		for _, t := range both {
			if err := t.deleteIfExists(out); err != nil {
				return err
			}
		}
		return out.Commit()
	})
}
