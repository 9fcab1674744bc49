package rules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// chain is a chain of a table. hook is -1 for one that others jump to.
type chain struct {
	name     string
	hook     int
	priority int
	rules    []*writer
	filter   bool // of type filter; else, of those with a hook, nat
}

// passes is how often a connection is led through the totals. A frontend that is just moving from one total to
// another can be missed, because every look-up of a packet sees the newest generation by itself; the next pass, a
// microsecond later, finds it.
const passes = 4

// tries is how often, by class, a pool that fills only a part of it is drawn from before its lower half is, which is
// full: enough for at most one draw in 256 to end there.
func tries(class int) int {
	switch class {
	case 0, 1:
		return 1 // always full
	case 2:
		return 4 // at least three quarters
	case 3:
		return 6 // at least five eighths
	}
	return 8
}

// ruleset gives the chains of a table as it is to be with the sets that exist. mark is the masquerade bit; 0 only in a
// table without frontends.
func (s *schema) ruleset(mark uint32) []chain {
	r := ruleWriter{s, mark}
	chains := []chain{
		r.hook("prerouting", unix.NF_INET_PRE_ROUTING, -100, r.new().jump("services")),
		r.hook("output", unix.NF_INET_LOCAL_OUT, -100, r.new().jump("services")),
		r.postrouting(),
		r.chain("services", r.services()...),
		r.chain("refuse", r.new().reject()),
		r.chain("leave", r.leave()...),
	}
	if s.companion != nil {
		chains = append(chains, r.companionChains()...)
	}
	if s.hasAffinity() {
		// A connection to a member on this node itself does not pass postrouting.
		chains = append(chains, r.input(), r.chain("remember", r.remember()...))
		chains = append(chains, r.notes()...)
		chains = append(chains, r.sticks()...)
	}
	if s.sides[byAddress].masq[plan.MasqueradeOutside].exists || s.sides[byNodePort].masq[plan.MasqueradeOutside].exists {
		chains = append(chains, r.chain("mark_outside", r.markOutside()...))
	}
	if s.sides[byAddress].masq[plan.MasqueradeFromNode].exists || s.sides[byNodePort].masq[plan.MasqueradeFromNode].exists {
		chains = append(chains, r.chain("mark_node", r.markNode()...))
	}
	for i := range sides {
		if s.sides[i].frontends.exists {
			chains = append(chains, r.side(i)...)
		}
	}
	return chains
}

type ruleWriter struct {
	*schema
	bit uint32
}

func (r ruleWriter) new() *writer { return newRule(r.family) }

func (r ruleWriter) hook(name string, hook, priority int, rules ...*writer) chain {
	return chain{name: name, hook: hook, priority: priority, rules: rules}
}

// chain leaves out the rules whose sets do not exist.
func (r ruleWriter) chain(name string, rules ...*writer) chain {
	rules = slices.DeleteFunc(rules, func(w *writer) bool {
		return slices.ContainsFunc(w.needs, func(n *set) bool { return !n.exists })
	})
	return chain{name: name, hook: -1, rules: rules}
}

func (r ruleWriter) postrouting() chain {
	w := r.new()
	if r.companion == nil {
		w.wasDNATed().goTo("leave")
	} else {
		w.goTo("balanced")
	}
	return r.hook("postrouting", unix.NF_INET_POST_ROUTING, 100, w)
}

func (r ruleWriter) input() chain {
	w := r.new()
	if r.companion == nil {
		w.wasDNATed().goTo("remember")
	} else {
		w.goTo("balanced_here")
	}
	return r.hook("input", unix.NF_INET_LOCAL_IN, 100, w)
}

func (r ruleWriter) services() []*writer {
	rules := []*writer{
		r.new().frontend(byAddress).in(r.sides[byAddress].frontends).goTo("service"),
		r.new().daddr().in(r.clusterIPs).goTo("refuse"),
		r.new().daddr().in(r.serviceCIDRs).daddr().notIn(r.externalIPs).drop(),
		r.new().daddr().in(r.nodePortAddrs).frontend(byNodePort).in(r.sides[byNodePort].frontends).goTo("nodeport_service"),
	}
	if r.companion != nil {
		rules = append(rules, r.new().daddr().in(r.linkAddrs).goTo("refuse"))
	}
	return rules
}

// remember finds out, when a connection has its member, whether that is to be noted: for whom, and for how long.
func (r ruleWriter) remember() []*writer {
	var rules []*writer
	for i := range sides {
		sets := r.sides[i].affine
		for _, timeout := range slices.Sorted(maps.Keys(sets)) {
			w := r.new()
			if i == byNodePort {
				w.originalDst().in(r.nodePortAddrs)
			}
			rules = append(rules, w.original(i).setID(sets[timeout]).goTo(noteName(timeout)))
		}
	}
	return rules
}

func noteName(timeout time.Duration) string {
	return "note_" + strconv.FormatInt(timeout.Milliseconds(), 10) + "ms"
}

// notes gives a chain a time-out: it notes the member in every list of the owner that has it, so that a client finds
// its member again whichever frontend of the Service port it uses, and never one that this frontend does not have.
func (r ruleWriter) notes() []chain {
	timeouts := map[time.Duration]bool{}
	for i := range sides {
		for timeout, n := range r.sides[i].affine {
			timeouts[timeout] = timeouts[timeout] || n.exists
		}
	}
	var chains []chain
	for _, timeout := range slices.Sorted(maps.Keys(timeouts)) {
		if !timeouts[timeout] {
			continue
		}
		var rules []*writer
		for _, list := range slices.Sorted(maps.Keys(r.members)) {
			rules = append(rules,
				r.new().id().daddr().dport().in(r.members[list]).remember(r.affinityOf(list), timeout))
		}
		chains = append(chains, r.chain(noteName(timeout), append(rules, r.new().dropID())...))
	}
	return chains
}

// sticks gives a chain a list: a client that is known goes where it went before.
func (r ruleWriter) sticks() []chain {
	var chains []chain
	for _, list := range slices.Sorted(maps.Keys(r.affinity)) {
		if n := r.affinity[list]; n.exists {
			chains = append(chains, r.chain("stick_"+strconv.Itoa(list), r.new().saddr().id().dnat(n), r.new().dropID()))
		}
	}
	return chains
}

func (r ruleWriter) leave() []*writer {
	var rules []*writer
	if r.hasAffinity() {
		rules = append(rules, r.new().jump("remember"))
	}
	rules = append(rules, r.new().saddr().daddr().in(r.hairpin).masquerade())
	if r.bit != 0 {
		rules = append(rules, r.new().marked(r.bit).flipMark(r.bit).masquerade())
	}
	if r.companion != nil {
		// A process of the node that has not chosen a source has the frontend's address, which other nodes have too.
		rules = append(rules, r.new().saddr().in(r.linkAddrs).masquerade())
	}
	return rules
}

func (r ruleWriter) markOutside() []*writer {
	return []*writer{
		r.new().saddr().in(r.unmasqueraded).back(),
		r.new().iifname().in(r.podInterfaces).back(),
		r.new().mark(r.bit),
	}
}

// markNode: what counts as a Pod comes first, as in the choice of a lane; an address of this node may be in the Pods'
// range, that of a bridge to them for one.
func (r ruleWriter) markNode() []*writer {
	return []*writer{
		r.new().saddr().in(r.podSources).back(),
		r.new().iifname().in(r.podInterfaces).back(),
		r.new().fromNode().mark(r.bit),
	}
}

// prefix of the names of a side's and a lane's chains, like those of its sets.
func prefix(i side, lane int) string {
	p := ""
	if i == byNodePort {
		p = "nodeport_"
	}
	if lane == outside {
		p += "outside_"
	}
	return p
}

// side gives the chains that a side's frontends pass: what is done before the choice, the choice of a lane, the
// dispatch by total, and the picks.
func (r ruleWriter) side(i side) []chain {
	ss, in, out := &r.sides[i], prefix(i, inside), prefix(i, outside)
	var first []*writer
	if r.companion != nil {
		first = append(first, r.new().tcpUnderWay().reset())
	}
	chains := []chain{r.chain(in+"service", append(first,
		r.new().frontend(i).in(ss.guarded).frontend(i).saddr().notIn(ss.ranges).drop(),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeOutside]).jump("mark_outside"),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeAlways]).mark(r.bit),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeFromNode]).jump("mark_node"),
		r.new().frontend(i).in(ss.split).goTo(in+"split"),
		r.new().goTo(in+"pools"))...)}
	chains = append(chains, r.lane(i, inside)...)
	if !ss.split.exists {
		return chains
	}
	chains = append(chains, r.chain(in+"split",
		r.new().saddr().in(r.podSources).goTo(in+"pools"),
		r.new().iifname().in(r.podInterfaces).goTo(in+"pools"),
		r.new().fromNode().goTo(in+"pools"),
		r.new().goTo(out+"pools")))
	return append(chains, r.lane(i, outside)...)
}

func (r ruleWriter) lane(i side, lane int) []chain {
	ls, p := &r.sides[i].lanes[lane], prefix(i, lane)
	var enter []*writer
	for _, list := range slices.Sorted(maps.Keys(ls.sticky)) {
		enter = append(enter, r.new().frontend(i).setID(ls.sticky[list]).jump("stick_"+strconv.Itoa(list)))
	}
	if r.companion != nil {
		return []chain{
			r.chain(p+"pools", append(enter, r.new().jump(p+"dispatch"), r.new().counter().drop())...),
			r.chain(p+"dispatch", append([]*writer{
				r.new().frontend(i).in(ls.rejected).goTo("refuse"),
				r.new().frontend(i).in(ls.dropped).drop()}, r.passOn(i, lane)...)...),
		}
	}
	for range passes {
		enter = append(enter, r.new().jump(p+"dispatch"))
	}
	enter = append(enter, r.new().counter().drop())
	var dispatch []*writer
	var picks []chain
	for kind, total := range ls.totals {
		if !total.exists {
			continue
		}
		c, hashed := classOf(kind)
		pick := p + "pick_" + strconv.Itoa(1<<c)
		if hashed {
			pick = p + "hash_" + strconv.Itoa(1<<c)
		}
		dispatch = append(dispatch, r.new().frontend(i).in(total).goTo(pick))
		picks = append(picks, r.chain(pick, r.pick(i, c, hashed, ls.slots)...))
	}
	dispatch = append(dispatch,
		r.new().frontend(i).in(ls.rejected).goTo("refuse"),
		r.new().frontend(i).in(ls.dropped).drop())
	return append([]chain{r.chain(p+"pools", enter...), r.chain(p+"dispatch", dispatch...)}, picks...)
}

// pick draws a slot. A pool of n slots has those from 0 to n-1 and is of the class whose size is the next power of
// two: drawing until a slot is hit is as even as drawing below n, and the rules do not depend on n.
//
// A hash of the client's address instead of a random number, another at each try, makes a consistent hash of it: a
// client moves only when the slot that it hits has changed, or when one that it missed is new.
func (r ruleWriter) pick(i side, class int, hashed bool, slots *set) []*writer {
	size, seed := uint32(1)<<class, uint32(0)
	draw := func(mod uint32) *writer {
		w := r.new().frontend(i)
		if seed++; hashed {
			return w.hash(mod, seed).dnat(slots)
		}
		return w.random(mod).dnat(slots)
	}
	var rules []*writer
	for range tries(class) {
		rules = append(rules, draw(size))
	}
	if class > 1 {
		rules = append(rules, draw(size/2))
	}
	if class > 0 {
		rules = append(rules, draw(1)) // slot 0 always exists
	}
	return rules
}

// nfproto is the kernel's number of a family.
func nfproto(f model.Family) byte {
	if f == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// encode gives the expressions of a rule as attributes.
func (w *writer) encode() ([]byte, error) {
	var b []byte
	for _, e := range w.exprs {
		v, err := expr.Marshal(nfproto(w.family), e)
		if err != nil {
			return nil, fmt.Errorf("encode a rule: %T: %w", e, err)
		}
		b = nfnl.AppendAttr(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, v)
	}
	return b, nil
}
