package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// loader returns the function that stores a set's elements, nil for other sets.
func (t *table) loader(s *set) func([]nfnl.Element) error {
	switch s {
	case t.clusterIPs:
		return t.loadRefs(&t.clusterAddrs)
	case t.externalIPs:
		return t.loadRefs(&t.otherAddrs)
	case t.vipAddrs:
		return t.loadRefs(&t.vipRefs)
	case t.hairpin:
		return t.loadRefs(&t.hairpins)
	case t.refusing:
		return t.loadRefs(&t.refusingAddrs)
	case t.nodePortAddrs:
		return loadAddrs(s, &t.globals.nodePortAddrs)
	case t.localhostAddrs:
		return loadAddrs(s, &t.globals.localhostAddrs)
	case t.schema.masqueradeBits:
		return func(list []nfnl.Element) error {
			for _, e := range list {
				if len(e.Key) < 4 {
					return errForeignElement(s)
				}
				t.globals.masqueradeBits = append(t.globals.masqueradeBits, binary.NativeEndian.Uint32(e.Key))
			}
			return nil
		}
	case t.podSources:
		return loadPrefixes(s, &t.globals.podSources)
	case t.unmasqueraded:
		return loadPrefixes(s, &t.globals.unmasqueraded)
	case t.serviceCIDRs:
		return loadPrefixes(s, &t.globals.serviceCIDRs)
	case t.noMasquerade:
		return loadPrefixes(s, &t.globals.noMasquerade)
	case t.podInterfaces:
		return func(list []nfnl.Element) error {
			for _, v := range pairEnds(list) {
				t.globals.interfaces = append(t.globals.interfaces, v.interfaces())
			}
			return nil
		}
	}
	for o, m := range t.outcomes.counters {
		if s == m {
			return t.loadCounted(outcome(o))
		}
	}
	for list, m := range t.affinity.endpoints {
		if s == m {
			return t.loadEndpoints(s, list)
		}
	}
	for list, m := range t.affinity.targets { // read later: its name is greater
		if s == m {
			return t.loadTargets(s, list)
		}
	}
	for i := range lookups {
		if put := t.frontendLoader(i, s); put != nil {
			return put
		}
	}
	return nil
}

func loadAddrs(s *set, into *[]netip.Addr) func([]nfnl.Element) error {
	return func(list []nfnl.Element) error {
		for _, e := range list {
			a, ok := netip.AddrFromSlice(e.Key)
			if !ok {
				return errForeignElement(s)
			}
			*into = append(*into, a)
		}
		slices.SortFunc(*into, netip.Addr.Compare)
		return nil
	}
}

func loadPrefixes(s *set, into *[]netip.Prefix) func([]nfnl.Element) error {
	return func(list []nfnl.Element) error {
		for _, v := range pairEnds(list) {
			p, ok := v.prefix()
			if !ok {
				return errForeignElement(s)
			}
			*into = append(*into, p)
		}
		slices.SortFunc(*into, netip.Prefix.Compare)
		return nil
	}
}

func (t *table) loadRefs(r *refCounts) func([]nfnl.Element) error {
	return func(list []nfnl.Element) error {
		for _, e := range list {
			if len(e.Key) < t.addr.bytes || r.twice && len(e.Key) < 2*t.addr.bytes {
				return errForeignElement(r.set)
			}
			a, _ := netip.AddrFromSlice(e.Key[:t.addr.bytes])
			if r.twice && string(e.Key[:t.addr.bytes]) != string(e.Key[t.addr.bytes:]) {
				return errForeignElement(r.set)
			}
			r.setInKernel(a)
		}
		return nil
	}
}

// frontendLoader returns the function for sets keyed by frontend.
func (t *table) frontendLoader(i lookup, s *set) func([]nfnl.Element) error {
	ss := &t.lookups[i]
	if s == ss.frontends {
		return t.loadEach(i, s, func(h *elements, _ []byte, e nfnl.Element) bool {
			h.listed, h.comment = true, e.Comment
			return true
		})
	}
	if bits := slices.Index(ss.ranges, s); bits >= 0 {
		return t.loadEach(i, s, func(h *elements, rest []byte, _ nfnl.Element) bool {
			a, ok := netip.AddrFromSlice(rest)
			p := netip.PrefixFrom(a, bits)
			h.ranges = append(h.ranges, p)
			return ok && p == p.Masked()
		})
	}
	switch s {
	case ss.groups:
		return t.loadEach(i, s, func(h *elements, _ []byte, e nfnl.Element) bool {
			id, ok := affinityIDOf(e.Data)
			h.groups = append(h.groups, id)
			return ok && id == id.group() && id != 0
		})
	case ss.learn:
		return t.loadEach(i, s, func(h *elements, _ []byte, e nfnl.Element) bool {
			c, ok := parseLearnChain(e.Jump)
			h.learn = append(h.learn, c)
			return ok
		})
	case ss.scopes[inside].find, ss.scopes[outside].find:
		scope := inside
		if s == ss.scopes[outside].find {
			scope = outside
		}
		return t.loadEach(i, s, func(h *elements, _ []byte, e nfnl.Element) bool {
			c, ok := parseFindChain(e.Jump)
			h.scopes[scope].find = append(h.scopes[scope].find, c)
			return ok
		})
	}
	if f := ss.flag(s); f != nil {
		return t.loadEach(i, s, func(h *elements, _ []byte, _ nfnl.Element) bool { f(h); return true })
	}
	for l := range scopes {
		if s == ss.scopes[l].fwmarks {
			return t.loadEach(i, s, func(h *elements, _ []byte, e nfnl.Element) bool {
				h.scopes[l].mark = uint32Of(e.Data)
				return h.scopes[l].mark != 0
			})
		}
		if s == ss.scopes[l].slots {
			return t.loadEach(i, s, func(h *elements, rest []byte, e nfnl.Element) bool {
				a, ok := t.addrPort(e.Data)
				return ok && len(rest) >= 4 && h.scopes[l].putSlot(binary.NativeEndian.Uint32(rest), a)
			})
		}
	}
	return nil
}

// flag returns how membership in a set of frontends is stored, nil for other sets.
func (ss *lookupSets) flag(s *set) func(*elements) {
	switch s {
	case ss.sourceRanged:
		return func(h *elements) { h.sourceRanged = true }
	case ss.uncommon:
		return func(h *elements) { h.uncommon = true }
	case ss.split:
		return func(h *elements) { h.split = true }
	case ss.longLived:
		return func(h *elements) { h.longLived = true }
	case ss.retried:
		return func(h *elements) { h.retried = true }
	}
	for m := plan.MasqueradeOutside; m <= plan.MasqueradeFromNode; m++ {
		if s == ss.masq[m] {
			return func(h *elements) { h.masq |= 1 << m }
		}
	}
	for l := range ss.scopes {
		ls := &ss.scopes[l]
		var bit uint32
		switch c := slices.Index(ls.bySize[:], s); {
		case c >= 0:
			bit = 1 << c
		case s == ls.rejected:
			bit = rejectedBit
		case s == ls.dropped:
			bit = droppedBit
		case s == ls.handedOff:
			bit = handedOffBit
		default:
			continue
		}
		return func(h *elements) { h.scopes[l].sets |= bit }
	}
	return nil
}

func (t *table) loadEach(i lookup, s *set, put func(h *elements, rest []byte, e nfnl.Element) bool) func([]nfnl.Element) error {
	return func(list []nfnl.Element) error {
		for _, e := range list {
			h, rest, ok := t.frontendOf(i, e.Key)
			if !ok || !put(h, rest, e) {
				return errForeignElement(s)
			}
		}
		return nil
	}
}

// countRefs counts references once everything is read.
func (t *table) countRefs() {
	x := &tx{t: t}
	for k, h := range t.frontends {
		slices.SortFunc(h.ranges, netip.Prefix.Compare)
		t.refer(x, k, h, 1)
		t.countChains(h, 1)
		t.longLived += countTrue(h.longLived)
	}
	t.addrsUncounted = true
	t.loadGroups()
}

// frontendOf decodes the key of a set of frontends and returns the rest of the key.
func (t *table) frontendOf(i lookup, key []byte) (*elements, []byte, bool) {
	k, rest, ok := t.frontendKeyOf(i, key)
	if !ok {
		return nil, nil, false
	}
	h := t.frontends[k]
	if h == nil {
		h = &elements{}
		t.frontends[k] = h
	}
	return h, rest, true
}

func (t *table) frontendKeyOf(i lookup, key []byte) (k plan.Key, rest []byte, ok bool) {
	addr := netip.IPv4Unspecified()
	if t.addr.bytes == 16 {
		addr = netip.IPv6Unspecified()
	}
	if i == byAddress {
		if len(key) < t.addr.bytes {
			return k, nil, false
		}
		addr, _ = netip.AddrFromSlice(key[:t.addr.bytes])
		key = key[t.addr.bytes:]
	}
	if len(key) < 8 {
		return k, nil, false
	}
	return plan.Key{Addr: addr, Port: binary.BigEndian.Uint16(key[4:]), Protocol: protocol(key[0])}, key[8:], true
}

// loadElements reads a set. If the kernel reports the number of elements, that is checked.
func (t *table) loadElements(s *set) error {
	put := t.loader(s)
	if put == nil {
		return nil
	}
	for try := 0; ; try++ {
		list, err := t.dumpSettled(s)
		if err != nil {
			return err
		}
		want, ok, err := t.count(s)
		if err != nil {
			return err
		}
		if ok && want != len(list) && try < 3 {
			continue
		}
		return put(list)
	}
}
