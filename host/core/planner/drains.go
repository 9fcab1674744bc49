package planner

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// drainingSince updates since when endpoints drain, Unix milliseconds; nil: none does.
func drainingSince(before map[netip.AddrPort]int64, now []netip.AddrPort, at int64) map[netip.AddrPort]int64 {
	if len(now) == 0 {
		return nil
	}
	out := make(map[netip.AddrPort]int64, len(now))
	for _, a := range now {
		out[a] = cmp.Or(before[a], at)
	}
	return out
}

// addTerminating completes since when endpoints drain with what plugins saw: that survives restarts.
func (e *Explanation) addTerminating() {
	for i := range e.Seen {
		for _, seen := range slices.Concat(e.Seen[i].Cluster, e.Seen[i].Local) {
			for j := range seen.Request.Endpoints {
				r := &seen.Request.Endpoints[j]
				if since, ok := e.DrainingSince[r.Addr]; ok && r.TerminatingSince != 0 && r.TerminatingSince < since {
					e.DrainingSince[r.Addr] = r.TerminatingSince
				}
			}
		}
	}
}

// Draining returns the Services with endpoints that drain, sorted, and how many more than limit there are.
func (p *Planner) Draining(limit int) (names []model.Name, more int) {
	return p.servicesWith(limit, func(s *serviceState) bool { return s.draining != nil })
}

// Failing returns the Services whose policy fails, sorted, and how many more than limit there are.
func (p *Planner) Failing(limit int) (names []model.Name, more int) {
	return p.servicesWith(limit, func(s *serviceState) bool { return s.summary.Failing })
}

// Zone returns the zone of this node as of the last Plan; "": it has none.
func (p *Planner) Zone() string { return p.nodeInfo.Zone }

func (p *Planner) servicesWith(limit int, ok func(*serviceState) bool) (names []model.Name, more int) {
	for name, s := range p.services {
		if ok(s) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.Name.Compare)
	n := min(limit, len(names))
	return names[:n], len(names) - n
}
