package nftables

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

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
}

// passes is how often a connection is led through the totals. A frontend that is just moving from one total to
// another can be missed, because every look-up of a packet sees the newest generation by itself; the next pass, a
// microsecond later, finds it.
const passes = 4

// tries is how often a pool that fills only a part of its class is drawn from before its lower half is, which is full.
const tries = 8

// ruleset gives the chains of a table as it is to be with the sets that exist. mark is the masquerade bit; 0 only in a
// table without frontends.
func (s *schema) ruleset(mark uint32) []chain {
	r := ruleWriter{s, mark}
	chains := []chain{
		{name: "prerouting", hook: unix.NF_INET_PRE_ROUTING, priority: -100, rules: []*writer{r.new().jump("services")}},
		{name: "output", hook: unix.NF_INET_LOCAL_OUT, priority: -100, rules: []*writer{r.new().jump("services")}},
		{name: "input", hook: unix.NF_INET_LOCAL_IN, priority: 100, rules: []*writer{r.new().wasDNATed().goTo("remember")}},
		{name: "postrouting", hook: unix.NF_INET_POST_ROUTING, priority: 100, rules: []*writer{r.new().wasDNATed().goTo("leave")}},
		{name: "services", rules: r.services()},
		{name: "refuse", rules: []*writer{r.new().reject()}},
		{name: "remember", rules: r.remember()},
		{name: "leave", rules: r.leave()},
		{name: "mark_outside", rules: r.markOutside()},
	}
	for i := range sides {
		chains = append(chains, r.side(i)...)
	}
	for i := range chains {
		if i >= 4 {
			chains[i].hook = -1
		}
		chains[i].rules = slices.DeleteFunc(chains[i].rules, func(w *writer) bool {
			return slices.ContainsFunc(w.needs, func(n *set) bool { return !n.exists })
		})
	}
	return chains
}

type ruleWriter struct {
	*schema
	bit uint32
}

func (r ruleWriter) new() *writer { return newRule(r.family) }

func (r ruleWriter) services() []*writer {
	return []*writer{
		r.new().frontend(byAddress).in(r.sides[byAddress].frontends).goTo("service"),
		r.new().daddr().in(r.clusterIPs).goTo("refuse"),
		r.new().daddr().in(r.serviceCIDRs).daddr().notIn(r.externalIPs).drop(),
		r.new().daddr().in(r.nodePortAddrs).frontend(byNodePort).in(r.sides[byNodePort].frontends).goTo("nodeport_service"),
	}
}

func (r ruleWriter) remember() []*writer {
	var rules []*writer
	for i := range sides {
		sets := r.sides[i].affine
		for _, timeout := range slices.Sorted(maps.Keys(sets)) {
			w := r.new()
			if i == byNodePort {
				w.originalDst().in(r.nodePortAddrs)
			}
			rules = append(rules, w.original(i).in(sets[timeout]).remember(r.affinity, timeout))
		}
	}
	return rules
}

func (r ruleWriter) leave() []*writer {
	rules := []*writer{
		r.new().jump("remember"),
		r.new().saddr().daddr().in(r.hairpin).masquerade(),
	}
	if r.bit != 0 {
		rules = append(rules, r.new().marked(r.bit).flipMark(r.bit).masquerade())
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
	chains := []chain{{name: in + "service", rules: []*writer{
		r.new().frontend(i).in(ss.guarded).frontend(i).saddr().notIn(ss.ranges).drop(),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeOutside]).jump("mark_outside"),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeAlways]).mark(r.bit),
		r.new().frontend(i).in(ss.masq[plan.MasqueradeFromNode]).fromNode().mark(r.bit),
		// Before the lanes part: a client is always in the same one.
		r.new().saddr().daddr().proto().dport().dnat(r.affinity),
		r.new().frontend(i).in(ss.split).goTo(in + "split"),
		r.new().goTo(in + "pools"),
	}}}
	chains = append(chains, r.lane(i, inside)...)
	if !ss.split.exists {
		return chains
	}
	chains = append(chains, chain{name: in + "split", rules: []*writer{
		r.new().saddr().in(r.podSources).goTo(in + "pools"),
		r.new().iifname().in(r.podInterfaces).goTo(in + "pools"),
		r.new().fromNode().goTo(in + "pools"),
		r.new().goTo(out + "pools"),
	}})
	return append(chains, r.lane(i, outside)...)
}

func (r ruleWriter) lane(i side, lane int) []chain {
	ls, p := &r.sides[i].lanes[lane], prefix(i, lane)
	enter := make([]*writer, 0, passes+1)
	for range passes {
		enter = append(enter, r.new().jump(p+"dispatch"))
	}
	enter = append(enter, r.new().counter().drop())
	var dispatch []*writer
	var picks []chain
	for c, total := range ls.totals {
		if !total.exists {
			continue
		}
		pick := p + "pick_" + strconv.Itoa(1<<c)
		dispatch = append(dispatch, r.new().frontend(i).in(total).goTo(pick))
		picks = append(picks, chain{name: pick, rules: r.pick(i, c, ls.slots)})
	}
	dispatch = append(dispatch,
		r.new().frontend(i).in(ls.rejected).goTo("refuse"),
		r.new().frontend(i).in(ls.dropped).drop())
	return append([]chain{{name: p + "pools", rules: enter}, {name: p + "dispatch", rules: dispatch}}, picks...)
}

// pick draws a slot. A pool of n slots has those from 0 to n-1 and is of the class whose size is the next power of
// two: drawing until a slot is hit is as even as drawing below n, and the rules do not depend on n.
func (r ruleWriter) pick(i side, class int, slots *set) []*writer {
	size := uint32(1) << class
	draw := func(mod uint32) *writer { return r.new().frontend(i).random(mod).dnat(slots) }
	n := tries
	if class <= 1 {
		n = 1 // always full
	}
	var rules []*writer
	for range n {
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
		b = appendAttr(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, v)
	}
	return b, nil
}
