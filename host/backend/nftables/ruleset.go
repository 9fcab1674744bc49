package nftables

import (
	"slices"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// ruleset returns the chains for the existing sets. mark is the masquerade bit, zero only in a table without frontends.
func (s *schema) ruleset(mark uint32) []chain {
	r := rulesetBuilder{s, mark}
	chains := []chain{
		r.hook(chainPrerouting, unix.NF_INET_PRE_ROUTING, backend.NATPriority, r.rule().jump("services")),
		r.hook("output", unix.NF_INET_LOCAL_OUT, backend.NATPriority, r.rule().jump("services")),
		r.hook("postrouting", unix.NF_INET_POST_ROUTING, 100, s.balancing.balanced(r.rule(), chainPostNAT)),
		r.chain("services", r.services()...),
		r.chain("refuse", r.rule().reject()),
		r.chain(chainPostNAT, r.postnat()...),
	}
	chains = append(chains, s.balancing.chains(r)...)
	if s.resets.exists {
		chains = append(chains, r.resetChain())
	}
	if s.lookups[byNodePort].scopes[inside].rejected.exists {
		chains = append(chains, r.refuseNodePortChains()...)
	}
	if s.localhostAddrs.exists && s.lookups[byNodePort].frontends.exists {
		chains = append(chains, r.localhostChain())
	}
	if s.refusing.exists {
		chains = append(chains, r.refusingChains()...)
	}
	if s.hasAffinity() {
		// Connections to an endpoint on this node do not pass postrouting.
		chains = append(chains, r.hook("input", unix.NF_INET_LOCAL_IN, 100, s.balancing.balanced(r.rule(), chainLearnAffinity)))
		chains = append(chains, r.chain(chainLearnAffinity, r.learnAffinity()...))
		chains = append(chains, r.learnChains()...)
		chains = append(chains, r.findChains()...)
	}
	if s.hasOutcomes() {
		chains = append(chains, r.outcomeChains()...)
	}
	if s.hasRetries() {
		chains = append(chains, r.retryChains()...)
	}
	if s.lookups[byAddress].masq[plan.MasqueradeOutside].exists || s.lookups[byNodePort].masq[plan.MasqueradeOutside].exists {
		chains = append(chains, r.chain("mark_outside", r.markOutside()...))
	}
	if s.lookups[byAddress].masq[plan.MasqueradeFromNode].exists || s.lookups[byNodePort].masq[plan.MasqueradeFromNode].exists {
		chains = append(chains, r.chain("mark_node", r.markNode()...))
	}
	for i := range lookups {
		if s.lookups[i].frontends.exists {
			chains = append(chains, r.frontendChains(i)...)
		}
	}
	return chains
}

func (r rulesetBuilder) services() []*ruleBuilder {
	return []*ruleBuilder{
		r.rule().l4proto(unix.IPPROTO_TCP).connection().in(r.resets).jump(chainReset),
		r.rule().frontendKey(byAddress).in(r.lookups[byAddress].frontends).gotoChain("service"),
		r.rule().daddr().in(r.clusterIPs).gotoChain("refuse"),
		r.rule().daddr().in(r.serviceCIDRs).daddr().notIn(r.externalIPs).drop(),
		r.rule().daddr().in(r.nodePortAddrs).frontendKey(byNodePort).in(r.lookups[byNodePort].frontends).gotoChain("nodeport_service"),
		r.rule().daddr().in(r.vipAddrs).gotoChain("refuse"),
	}
}

func (r rulesetBuilder) postnat() []*ruleBuilder {
	var rules []*ruleBuilder
	if r.hasAffinity() {
		rules = append(rules, r.rule().jump(chainLearnAffinity))
	}
	rules = append(rules, r.rule().saddr().daddr().in(r.hairpin).masquerade())
	if r.bit != 0 {
		rules = append(rules, r.rule().daddr().in(r.noMasquerade).hasMark(r.bit).xorMark(r.bit))
		rules = append(rules, r.rule().hasMark(r.bit).xorMark(r.bit).masquerade())
	}
	// A process on the node that did not choose a source address has the frontend's, which other nodes have too.
	return append(rules, r.rule().saddr().in(r.vipAddrs).masquerade())
}

func (r rulesetBuilder) markOutside() []*ruleBuilder {
	return []*ruleBuilder{
		r.rule().saddr().in(r.unmasqueraded).ret(),
		r.rule().iifname().in(r.podInterfaces).ret(),
		r.rule().orMark(r.bit),
	}
}

// markNode excludes Pods first, as the choice of a scope does: an address of this node may be in the Pods' range, such
// as that of a bridge.
func (r rulesetBuilder) markNode() []*ruleBuilder {
	return []*ruleBuilder{
		r.rule().saddr().in(r.podSources).ret(),
		r.rule().iifname().in(r.podInterfaces).ret(),
		r.rule().fromNode().orMark(r.bit),
	}
}

// frontendChains returns the chains that packets to frontends pass: source ranges, masquerading, the choice of a scope, and
// those of poolChains.
func (r rulesetBuilder) frontendChains(i lookup) []chain {
	ss, in, out := &r.lookups[i], prefix(i, inside), prefix(i, outside)
	chains := []chain{
		r.chain(in+"service", append(r.balancing.entryRules(r),
			r.rule().frontendKey(i).in(ss.sourceRanged).gotoChain(in+"restricted"),
			r.rule().gotoChain(in+"admitted"))...),
	}
	if ss.sourceRanged.exists {
		chains = append(chains, r.sourceRangeChains(i)...)
	}
	chains = append(chains, r.chain(in+"admitted",
		r.rule().frontendKey(i).in(ss.masq[plan.MasqueradeOutside]).jump("mark_outside"),
		r.rule().frontendKey(i).in(ss.masq[plan.MasqueradeAlways]).orMark(r.bit),
		r.rule().frontendKey(i).in(ss.masq[plan.MasqueradeFromNode]).jump("mark_node"),
		r.rule().frontendKey(i).in(ss.split).gotoChain(in+"split"),
		r.rule().gotoChain(in+"pools")))
	chains = append(chains, r.poolChains(i, inside)...)
	if !ss.split.exists {
		return chains
	}
	chains = append(chains, r.chain(in+"split",
		r.rule().saddr().in(r.podSources).gotoChain(in+"pools"),
		r.rule().iifname().in(r.podInterfaces).gotoChain(in+"pools"),
		r.rule().fromNode().gotoChain(in+"pools"),
		r.rule().gotoChain(out+"pools")))
	return append(chains, r.poolChains(i, outside)...)
}

// sourceRangeChains returns the chains of frontends with source ranges. A source is looked up once for each length of a prefix,
// so adding and deleting a range costs the same however many there are: in an interval set, it costs as much as the set is large.
// Lengths that are uncommon are looked up for frontends that have such ranges only, so that their number does not slow down
// others. During a change, a source can be in one set when that is looked up and in another one later, so it is looked up again.
func (r rulesetBuilder) sourceRangeChains(i lookup) []chain {
	ss, p := &r.lookups[i], prefix(i, inside)
	var common, uncommon []*ruleBuilder
	for bits, s := range slices.Backward(ss.ranges) {
		list := &common
		if isUncommon(r.family, bits) {
			list = &uncommon
		}
		*list = append(*list, r.rule().frontendKey(i).saddrPrefix(bits).in(s).gotoChain(p+"admitted"))
	}
	common = append(common, r.rule().frontendKey(i).in(ss.uncommon).gotoChain(p+"uncommon_source_ranges"))
	chains := []chain{
		r.chain(p+"restricted",
			r.rule().jump(p+"source_ranges"),
			r.rule().jump(p+"source_ranges"),
			r.rule().frontendKey(i).in(ss.sourceRanged).drop(),
			r.rule().gotoChain(p+"admitted")), // its ranges were deleted meanwhile
		r.chain(p+"source_ranges", common...),
	}
	if ss.uncommon.exists {
		chains = append(chains, r.chain(p+"uncommon_source_ranges", uncommon...))
	}
	return chains
}

// poolChains returns the chains of one scope's pools.
func (r rulesetBuilder) poolChains(l lookup, scope int) []chain {
	ss, p := &r.lookups[l].scopes[scope], prefix(l, scope)
	var enter []*ruleBuilder
	if r.hasAffinity() {
		enter = append(enter, r.rule().frontendKey(l).setPriorityFrom(r.lookups[l].groups).frontendKey(l).vmap(ss.find))
	}
	for range r.balancing.traits().dispatches {
		enter = append(enter, r.rule().jump(p+"dispatch"))
	}
	enter = append(enter, r.rule().counter().drop())
	dispatch, more := r.balancing.dispatch(r, l, scope)
	return append([]chain{r.chain(p+"pools", enter...), r.chain(p+"dispatch", dispatch...)}, more...)
}

// refusingChains reject connections to the endpoints that stand for refusing, once NAT or IPVS has chosen them.
func (r rulesetBuilder) refusingChains() []chain {
	chains := []chain{
		r.hook("refusing_prerouting", unix.NF_INET_PRE_ROUTING, backend.NATPriority+2, r.rule().daddr().in(r.refusing).reject()),
		r.hook("refusing_output", unix.NF_INET_LOCAL_OUT, backend.NATPriority+2, r.rule().daddr().in(r.refusing).reject()),
	}
	for i := range chains {
		chains[i].filter = true
	}
	return chains
}

// refuseNodePortChains reject connections to NodePorts without endpoints. A packet that is rejected in the output hook makes send
// fail with EPERM. Over TCP the ICMP error decides, but a UDP client never reads after that. So a datagram of the node to itself
// is rejected where it arrives, as kube-proxy does it: its client meets ECONNREFUSED. Chains of type nat do not see it there.
func (r rulesetBuilder) refuseNodePortChains() []chain {
	toItself := func() *ruleBuilder {
		return r.rule().l4proto(unix.IPPROTO_UDP).interfaceType(expr.MetaKeyOIFTYPE, unix.ARPHRD_LOOPBACK)
	}
	ports := &r.lookups[byNodePort]
	out := r.chain(chainRefuseNodePort, toItself().accept(), r.rule().reject())
	if r.bit != 0 { // or its source address would be translated
		out.rules = slices.Insert(out.rules, 0, toItself().hasMark(r.bit).xorMark(r.bit))
	}
	in := r.hook(chainRefuseNodePort+"_input", unix.NF_INET_LOCAL_IN, -1,
		r.rule().interfaceType(expr.MetaKeyIIFTYPE, unix.ARPHRD_LOOPBACK).ctNew().daddr().in(r.nodePortAddrs).
			l4proto(unix.IPPROTO_UDP).frontendKey(byNodePort).in(ports.scopes[inside].rejected).reject()) // in the order of nft
	in.filter = true
	if !r.nodePortAddrs.exists {
		return []chain{out}
	}
	return []chain{out, in}
}
