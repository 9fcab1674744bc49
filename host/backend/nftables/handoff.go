package nftables

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// HandOff leaves balancing to IPVS. The tables do what IPVS cannot: source ranges, rejecting, masquerading, session
// affinity, and distinguishing sources outside the cluster. A connection that is to be balanced is accepted, with or
// without a packet mark that identifies its pool, and IPVS changes its destination in LOCAL_IN or LOCAL_OUT.
type HandOff struct {
	// Capabilities are what the balancer can represent.
	Capabilities plan.Caps
	// MarkMask are the bits of the packet mark that identify pools, at least two. If it is 0, tables with any mask can be
	// read, and none can be written.
	MarkMask uint32
	// PoolMark returns the packet mark of a frontend's pool: the one for sources outside the cluster, or the other. It has
	// some bits of MarkMask, not all, and no others. Zero means none: the packet's destination identifies the pool.
	PoolMark func(f *plan.Frontend, outside bool) uint32
	// GuardedVIPs returns the addresses that the node has, or is about to have, only for balancing. Packets to them that
	// match no frontend are rejected, as the node's own servers would receive them, and packets from them are
	// masqueraded. It is called when Apply reads the tables; Guard applies changes.
	GuardedVIPs func() map[netip.Addr]bool

	readMask uint32 // that of the table which was read last, if MarkMask is 0
}

func (h *HandOff) markMask() uint32 { return cmp.Or(h.MarkMask, h.readMask) }

const handOffComment = ", balanced by IPVS, packet marks "

func (h *HandOff) acceptsComment(s string) bool {
	if h.MarkMask != 0 {
		return s == h.traits().tableComment
	}
	mask, ok := strings.CutPrefix(s, tableComment+handOffComment)
	n, err := strconv.ParseUint(mask, 0, 32)
	h.readMask = uint32(n)
	return ok && err == nil && n != 0
}

// Caps implements Balancing.
func (h *HandOff) Caps() plan.Caps { return h.Capabilities }

func (h *HandOff) traits() traits {
	return traits{tableComment: fmt.Sprintf("%s%s%#x", tableComment, handOffComment, h.markMask()), dispatches: 1, exclusive: true}
}

func (h *HandOff) guardedVIPs() map[netip.Addr]bool { return h.GuardedVIPs() }

func (h *HandOff) addSets(s *schema, l lookup, scope int, ss *scopeSets) {
	p, key := prefix(l, scope), s.frontendKey(l)
	ss.handedOff = s.addSet(p+"handed_off", key...)
	ss.fwmarks = s.addSet(p+"fwmarks", key...).mapTo(markField).hostData()
}

// encodePool stores the endpoints that may get connections in place of slots: affinity needs them.
func (h *HandOff) encodePool(f *plan.Frontend, p *plan.Pool, scope int, _ packedSlots) (poolElements, error) {
	// A pool that accepts no connections may have endpoints and so a mark.
	out := poolElements{mark: h.PoolMark(f, scope == outside)}
	if m := out.mark; m&^h.MarkMask != 0 || m != 0 && m == h.MarkMask {
		return poolElements{}, fmt.Errorf("%#x is not a pool mark", m)
	}
	switch {
	case p.Verdict == plan.Drop:
		out.sets = droppedBit
		return out, nil
	case p.Verdict == plan.Reject || p.Total() == 0:
		out.sets = rejectedBit
		return out, nil
	case out.mark == 0:
		out.sets = handedOffBit
	}
	list := make([]netip.AddrPort, 0, len(p.Endpoints))
	for _, m := range p.Endpoints {
		if m.Weight > 0 {
			list = append(list, m.Addr)
		}
	}
	out.slots = pack(list)
	return out, nil
}

func (h *HandOff) changePool(x *tx, ss *scopeSets, key []byte, now, want *poolElements) {
	x.toggle(ss.handedOff, key, now.sets&handedOffBit != 0, want.sets&handedOffBit != 0)
	if now.mark == want.mark {
		return
	}
	if now.mark != 0 {
		x.del(ss.fwmarks, nfnl.Element{Key: key})
	}
	if want.mark != 0 {
		x.add(ss.fwmarks, nfnl.Element{Key: key, Data: native(want.mark)})
	}
}

// changeEndpoints writes nothing: the endpoints are in no set.
func (h *HandOff) changeEndpoints(*tx, *scopeSets, []byte, packedSlots, packedSlots) error {
	return nil
}

// entryRules reset TCP connections that conntrack does not know: their entries were deleted to end them, and IPVS would
// keep forwarding them.
func (h *HandOff) entryRules(r rulesetBuilder) []*ruleBuilder {
	return []*ruleBuilder{r.rule().tcpWithoutSYN().tcpReset()}
}

// dispatch accepts the connections to be balanced, with the mark of their pool if it has one. No chain of type nat of another
// program sees them, as in mode nftables.
func (h *HandOff) dispatch(r rulesetBuilder, l lookup, scope int) ([]*ruleBuilder, []chain) {
	ss := &r.lookups[l].scopes[scope]
	rules := r.verdicts(l, scope)
	save := r.rule()
	if l == byAddress {
		save.frontendKey(l).in(r.lookups[l].split) // others have no mark
	}
	m := h.markMask()
	rules = append(rules, save.ifExists(ss.fwmarks).hasMark(^m).copyMeta(expr.MetaKeyMARK, expr.MetaKeyPRIORITY, ^m, m))
	return append(rules,
		r.rule().frontendKey(l).markFrom(ss.fwmarks).keepDestination(),
		r.rule().frontendKey(l).in(ss.handedOff).keepDestination()), nil
}

func (h *HandOff) balanced(r *ruleBuilder, target string) *ruleBuilder {
	return r.gotoChain(ipvsPrefix + target)
}

func (h *HandOff) chains(r rulesetBuilder) []chain {
	balanced := func(target string, key func(*ruleBuilder, lookup) *ruleBuilder) chain {
		var rules []*ruleBuilder
		for _, proto := range protocols {
			rules = append(rules,
				key(r.rule().ctProtocol(proto), byAddress).in(r.lookups[byAddress].frontends).gotoChain(target),
				key(r.rule().ctProtocol(proto).originalDst().in(r.nodePortAddrs), byNodePort).in(r.lookups[byNodePort].frontends).gotoChain(target))
		}
		return r.chain(ipvsPrefix+target, rules...)
	}
	chains := []chain{balanced(chainPostNAT, (*ruleBuilder).originalKey)}
	if r.hasOutcomes() {
		chains = append(chains, balanced(chainCountAttempt, (*ruleBuilder).originalCtKey), balanced(chainCountAnswer, (*ruleBuilder).originalCtKey))
	}
	if r.hasAffinity() {
		chains = append(chains, balanced(chainLearnAffinity, (*ruleBuilder).originalKey))
	}
	if !r.hasPoolMarks() {
		return chains
	}
	// IPVS compares the whole mark with those of its fwmark services. So the other bits of a packet are in its priority
	// from the dispatch chain until IPVS has seen it, together with all bits of the mask, which no pool has. Bits that rules
	// of others set in LOCAL_IN, where they filter before IPVS, take their place, except for the masquerade bit.
	const saveMark, clearMark = "save_mark", "clear_pool_mark"
	m := h.markMask()
	ours := func() *ruleBuilder { return r.rule().hasMark(m) }
	// IPVS is at -98 in LOCAL_OUT, which packets pass again when they have their endpoint, and at 98 and 99 in LOCAL_IN.
	save := r.hook(saveMark+"_input", unix.NF_INET_LOCAL_IN, 97, ours().hasMark(^m).gotoChain(ipvsPrefix+saveMark))
	out := r.hook(clearMark+"_output", unix.NF_INET_LOCAL_OUT, -97, ours().gotoChain(ipvsPrefix+clearMark))
	in := r.hook(clearMark+"_input", unix.NF_INET_LOCAL_IN, 101, ours().gotoChain(ipvsPrefix+clearMark))
	save.filter, out.filter, in.filter = true, true, true
	var saves []*ruleBuilder
	if r.bit != 0 {
		saves = append(saves, r.rule().hasBits(expr.MetaKeyPRIORITY, m|r.bit).changeMark(^r.bit, r.bit))
	}
	saves = append(saves, r.rule().copyMeta(expr.MetaKeyMARK, expr.MetaKeyPRIORITY, ^m, m).changeMark(m, 0))
	// Only packets to frontends: others may use these bits for theirs.
	chains = append(chains, balanced(saveMark, (*ruleBuilder).originalKey), balanced(clearMark, (*ruleBuilder).originalKey))
	return append(chains, save, out, in, r.chain(saveMark, saves...), r.chain(clearMark,
		r.rule().hasBits(expr.MetaKeyPRIORITY, m).copyMeta(expr.MetaKeyPRIORITY, expr.MetaKeyMARK, ^m, 0).setMeta(expr.MetaKeyPRIORITY, 0).accept(),
		r.rule().changeMark(^m, 0)))
}

func (s *schema) hasPoolMarks() bool {
	for l := range lookups {
		for scope := range scopes {
			if s.lookups[l].scopes[scope].fwmarks.exists {
				return true
			}
		}
	}
	return false
}
