package slots

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// sourcesWay is a way from the source ranges of a frontend to others. Those that are new are added first, the others deleted
// then: on the way a frontend is open to each source that both lists allow, and to none that neither allows, however the ranges
// overlap.
type sourcesWay struct{ from, to []netip.Prefix }

// sourcesTo returns the way from the sources of one frontend to those of another one; nil frontends have none.
func sourcesTo(old, f *plan.Frontend) sourcesWay { return sourcesWay{sourcesOf(old), sourcesOf(f)} }

// everySource is read-only.
var everySource = map[model.Family][]netip.Prefix{
	model.IPv4: {netip.PrefixFrom(netip.IPv4Unspecified(), 0)},
	model.IPv6: {netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
}

func sourcesOf(f *plan.Frontend) []netip.Prefix {
	switch {
	case f == nil:
		return nil
	case f.SourceRanges == nil:
		return everySource[f.Key.Family()]
	}
	return f.SourceRanges
}

// left returns the number of changes to the end.
func (w *sourcesWay) left() int { return rangeChanges(w.from, w.to) }

// after returns the source ranges after n changes, as a frontend has them: not empty, and nil for all sources.
func (w *sourcesWay) after(n int) []netip.Prefix {
	var out []netip.Prefix
	switch {
	case len(w.from) == 0:
		out = w.to[:min(n, len(w.to))]
	case len(w.to) == 0:
		out = w.from[min(n, len(w.from)-1):]
	default:
		out = w.merge(n)
	}
	if len(out) == 1 && out[0].Bits() == 0 {
		return nil
	}
	return out
}

// merge returns the ranges of the first list with up to n changes.
func (w *sourcesWay) merge(n int) []netip.Prefix {
	common := (len(w.from) + len(w.to) - w.left()) / 2
	add := min(n, len(w.to)-common)
	del := 0
	if add == len(w.to)-common {
		del = min(n-add, len(w.from)-common)
	}
	out := make([]netip.Prefix, 0, len(w.from)+add-del)
	from, to := w.from, w.to
	for len(from) > 0 || len(to) > 0 {
		order := -1
		switch {
		case len(from) == 0:
			order = 1
		case len(to) > 0:
			order = from[0].Compare(to[0])
		}
		switch {
		case order < 0 && del > 0:
			del--
		case order > 0 && add == 0:
		case order > 0:
			out, add = append(out, to[0]), add-1
		default:
			out = append(out, from[0])
		}
		if order <= 0 {
			from = from[1:]
		}
		if order >= 0 {
			to = to[1:]
		}
	}
	return out
}
