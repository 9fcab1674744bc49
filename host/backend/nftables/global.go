package nftables

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// globals is one family's share of the global part of a plan.
type globals struct {
	nodePortAddrs  []netip.Addr
	localhostAddrs []netip.Addr
	podSources     []netip.Prefix
	unmasqueraded  []netip.Prefix
	serviceCIDRs   []netip.Prefix
	noMasquerade   []netip.Prefix
	interfaces     []interfaceRange
	masqueradeBits []uint32
}

// interfaceRange is an interface name or prefix*, with the other names in the list that it covers: an interval set
// cannot have overlaps.
type interfaceRange struct{ name, covers string }

// encodeGlobals returns a family's share of the global part.
func encodeGlobals(g *plan.Global, f model.Family) globals {
	var l globals
	l.nodePortAddrs = addrsOf(g.NodePortAddrs, f)
	l.localhostAddrs = addrsOf(g.LocalhostAddrs, f)
	l.podSources = ofFamily(g.PodSources, f)
	l.serviceCIDRs = ofFamily(g.ServiceCIDRs, f)
	l.noMasquerade = ofFamily(g.NoMasquerade, f)
	l.interfaces = coverRanges(g.PodInterfaces)
	l.unmasqueraded = l.podSources
	if len(l.podSources) == 0 && len(g.PodInterfaces) == 0 {
		// Nothing distinguishes Pods from others, so no source is outside.
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if f == model.IPv6 {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		l.unmasqueraded = []netip.Prefix{all}
	}
	if g.MasqueradeMark != 0 {
		l.masqueradeBits = []uint32{g.MasqueradeMark}
	}
	return l
}

func addrsOf(list []netip.Addr, f model.Family) (out []netip.Addr) {
	for _, a := range list {
		if model.FamilyOf(a) == f {
			out = append(out, a)
		}
	}
	return out
}

func ofFamily(list []netip.Prefix, f model.Family) (out []netip.Prefix) {
	for _, p := range list {
		if model.FamilyOf(p.Addr()) == f {
			out = append(out, p)
		}
	}
	return out
}

func coverRanges(names []string) (out []interfaceRange) {
	for _, n := range names {
		if slices.ContainsFunc(names, func(m string) bool { return m != n && covers(m, n) }) {
			continue
		}
		var covered []string
		for _, m := range names {
			if m != n && covers(n, m) {
				covered = append(covered, m)
			}
		}
		out = append(out, interfaceRange{n, strings.Join(covered, " ")})
	}
	return out
}

// covers reports whether a pattern matches everything that another name or pattern matches.
func covers(pattern, name string) bool {
	stem, ok := strings.CutSuffix(pattern, "*")
	return ok && strings.HasPrefix(strings.TrimSuffix(name, "*"), stem)
}

func interfaceNames(list []interfaceRange) (names []string) {
	for _, i := range list {
		names = append(names, i.names()...)
	}
	slices.Sort(names)
	return names
}

func (i interfaceRange) names() []string {
	return append([]string{i.name}, strings.Fields(i.covers)...)
}

// changeGlobals changes the global sets.
func (t *table) changeGlobals(x *tx, want globals) {
	x.owner = ""
	now := &t.globals
	changeList(x, now.nodePortAddrs, want.nodePortAddrs, addrsIn(t.nodePortAddrs))
	changeList(x, now.localhostAddrs, want.localhostAddrs, addrsIn(t.localhostAddrs))
	changeList(x, now.podSources, want.podSources, prefixesIn(t.podSources))
	changeList(x, now.unmasqueraded, want.unmasqueraded, prefixesIn(t.unmasqueraded))
	changeList(x, now.serviceCIDRs, want.serviceCIDRs, prefixesIn(t.serviceCIDRs))
	changeList(x, now.noMasquerade, want.noMasquerade, prefixesIn(t.noMasquerade))
	changeList(x, now.interfaces, want.interfaces, func(i interfaceRange) (*set, []nfnl.Element) {
		return t.podInterfaces, interfaceElements(i)
	})
	changeList(x, now.masqueradeBits, want.masqueradeBits, func(m uint32) (*set, []nfnl.Element) {
		return t.schema.masqueradeBits, []nfnl.Element{{Key: native(m)}}
	})
	t.globals = want
	var bit uint32
	if len(want.masqueradeBits) > 0 {
		bit = want.masqueradeBits[0]
	}
	if bit != t.masqueradeBit {
		t.masqueradeBit = bit
		t.rulesDirty = true
	}
}

func addrsIn(s *set) func(netip.Addr) (*set, []nfnl.Element) {
	return func(a netip.Addr) (*set, []nfnl.Element) { return s, []nfnl.Element{{Key: a.AsSlice()}} }
}

func prefixesIn(s *set) func(netip.Prefix) (*set, []nfnl.Element) {
	return func(p netip.Prefix) (*set, []nfnl.Element) { return s, prefixElements(p) }
}

// prefixElements returns the two ends of a range. One that includes the last address has no upper end.
func prefixElements(p netip.Prefix) []nfnl.Element {
	list := []nfnl.Element{{Key: p.Addr().AsSlice()}}
	if end := lastOf(p).Next(); end.IsValid() {
		list = append(list, nfnl.Element{Key: end.AsSlice(), IntervalEnd: true})
	}
	return list
}

func interfaceElements(i interfaceRange) []nfnl.Element {
	stem, wild := strings.CutSuffix(i.name, "*")
	var from [16]byte
	copy(from[:], stem)
	to := from
	at := len(to) - 1
	if wild {
		at = len(stem) - 1
	}
	for ; at >= 0; at-- {
		if to[at]++; to[at] != 0 {
			break
		}
	}
	return []nfnl.Element{{Key: from[:], Comment: i.covers}, {Key: to[:], IntervalEnd: true}}
}

// interval is one range of an interval set. A nil to is no upper end.
type interval struct {
	from, to []byte
	comment  string
}

// pairEnds joins the ends in a dump.
func pairEnds(list []nfnl.Element) (out []interval) {
	slices.SortFunc(list, func(a, b nfnl.Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		if a.IntervalEnd == b.IntervalEnd {
			return 0
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	for i, e := range list {
		if e.IntervalEnd {
			continue
		}
		v := interval{from: e.Key, comment: e.Comment}
		if i+1 < len(list) && list[i+1].IntervalEnd {
			v.to = list[i+1].Key
		}
		out = append(out, v)
	}
	return out
}

// prefix returns the range as one prefix.
func (v interval) prefix() (netip.Prefix, bool) {
	from, ok := netip.AddrFromSlice(v.from)
	if !ok {
		return netip.Prefix{}, false
	}
	for bits := range from.BitLen() + 1 {
		p := netip.PrefixFrom(from, bits)
		if p.Masked() != p {
			continue
		}
		end := lastOf(p).Next()
		if v.to == nil && !end.IsValid() || v.to != nil && end.IsValid() && bytes.Equal(end.AsSlice(), v.to) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func (v interval) interfaces() interfaceRange {
	name := nfnl.Text(v.from)
	exact := interfaceElements(interfaceRange{name: name})
	if !bytes.Equal(exact[1].Key, v.to) {
		name += "*"
	}
	return interfaceRange{name, v.comment}
}
