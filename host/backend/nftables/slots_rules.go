package nftables

import (
	"maps"
	"slices"
	"strconv"
)

// maxDispatches is how often a connection passes the dispatch chain. A frontend that is moving to another slot table
// can be missed, as each lookup of a packet sees the newest generation; the next pass, a microsecond later, finds it.
const maxDispatches = 4

// drawsOf returns how often a slot is drawn, by size class, before only the lower half is drawn from, which is full. At
// most one packet in 256 gets there.
func drawsOf(class int) int {
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

func (Slots) entryRules(rulesetBuilder) []*ruleBuilder { return nil }

func (Slots) balanced(r *ruleBuilder, target string) *ruleBuilder {
	return r.ctDNAT().gotoChain(target)
}

func (Slots) chains(rulesetBuilder) []chain { return nil }

func (b Slots) dispatch(r rulesetBuilder, l lookup, scope int) (rules []*ruleBuilder, picks []chain) {
	ss, p := &r.lookups[l].scopes[scope], prefix(l, scope)
	draws := map[int]bool{} // classes that are drawn from
	for i, pools := range ss.bySize {
		if !pools.exists {
			continue
		}
		class, hashed := classOf(i)
		name, pick := p+"pick_", func(class int) *ruleBuilder {
			draws[class] = true
			return r.rule().jump(p + "draw_" + strconv.Itoa(1<<class))
		}
		if hashed {
			seed := uint32(0)
			name, pick = p+"hash_", func(class int) *ruleBuilder {
				seed++
				return r.rule().frontendKey(l).hash(1<<class, seed).dnat(ss.slots)
			}
		}
		name += strconv.Itoa(1 << class)
		rules = append(rules, r.rule().frontendKey(l).in(pools).gotoChain(name))
		picks = append(picks, r.chain(name, b.pick(class, pick)...))
	}
	for _, class := range slices.Sorted(maps.Keys(draws)) {
		picks = append(picks, r.chain(p+"draw_"+strconv.Itoa(1<<class), r.rule().frontendKey(l).random(1<<class).dnat(ss.slots)))
	}
	return append(rules, r.verdicts(l, scope)...), picks
}

// pick draws a slot, with rules from draw for a size class. A pool of n slots has those from 0 to n-1 and the size class of the
// next power of two. Drawing until a slot is hit is as even as drawing below n, and the rules do not depend on n.
//
// With a hash of the client's address instead of a random number, a different one at each try, this is a consistent hash: a
// client moves only if the slot that it hits changed, or one that it missed is new. Random draws of a class share a chain: for
// each element that is added to a map, the kernel goes through all rules that use it.
func (Slots) pick(class int, draw func(class int) *ruleBuilder) (rules []*ruleBuilder) {
	for _, c := range tries(class) {
		rules = append(rules, draw(c))
	}
	return rules
}
