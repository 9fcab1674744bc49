package nftables

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// detach removes a frontend that is about to change from its lists.
func (t *table) detach(h *elements) {
	if h == nil || len(h.groups) == 0 {
		return
	}
	g := t.groups.byID[h.groups[0]]
	if g == nil {
		return
	}
	t.groups.markChanged(g)
	g.frontends--
	for l := range scopes {
		for _, v := range h.scopes[l].find {
			g.list(v.list).refs--
		}
	}
}

// attach gives a frontend its group's id and its pools their lists. All frontends of the group that change were
// detached before, so that a list whose endpoints change stays the same list and keeps its clients.
func (t *table) attach(h, before *elements, f *plan.Frontend) error {
	g := t.groups.byName[f.Owner]
	timeout := (f.Affinity + time.Millisecond - 1).Truncate(time.Millisecond)
	if g == nil {
		var err error
		if g, err = t.groups.create(func(room int) bool { return t.hasLearnChain(learnChain{room, timeout}) }); err != nil {
			return err
		}
		t.groups.setName(g, f.Owner)
	}
	t.groups.markChanged(g)
	g.frontends++
	h.groups = []affinityID{g.id}
	h.learn = []learnChain{{g.id.room(), timeout}}
	t.needLearnChain(h.learn[0])
	for l := range scopes {
		endpoints := endpointsOf(h.scopes[l].slots.unpack())
		if len(endpoints) == 0 {
			continue
		}
		endpoints = endpoints[:min(len(endpoints), maxAffinityID)]
		want := make([]netip.AddrPort, len(endpoints))
		for i, m := range endpoints {
			want[i] = m.Addr
		}
		last := -1
		if before != nil && len(before.scopes[l].find) > 0 {
			last = before.scopes[l].find[0].list
		}
		n := g.pickList(want, last)
		g.list(n).wanted = want
		g.list(n).refs++
		find := findChain{n, g.id.room()}
		h.scopes[l].find = []findChain{find}
		t.needFindChain(find)
	}
	return nil
}
