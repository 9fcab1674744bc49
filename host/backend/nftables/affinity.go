package nftables

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func (id affinityID) room() int { return int(id>>16) % affinityRooms }

// affinityGroup is a Service port with session affinity. Its clients are recorded under its id, once for each list of
// endpoints that its frontends have: usually one, two if some frontends lead to local endpoints only.
type affinityGroup struct {
	id        affinityID
	names     []model.PortName // one if we wrote its frontends
	frontends int
	lists     []*endpointList
	changed   bool
}

type affinityGroups struct {
	byName  map[model.PortName]*affinityGroup
	byID    map[affinityID]*affinityGroup
	inRoom  [affinityRooms]int // groups by room
	last    int                // the group number used last: numbers are not reused soon, because clients are recorded with them
	changed []*affinityGroup
}

func newAffinityGroups() affinityGroups {
	return affinityGroups{byName: map[model.PortName]*affinityGroup{}, byID: map[affinityID]*affinityGroup{}}
}

func (o *affinityGroups) markChanged(g *affinityGroup) {
	if !g.changed {
		g.changed = true
		o.changed = append(o.changed, g)
	}
}

func (o *affinityGroups) add(id affinityID) *affinityGroup {
	g := &affinityGroup{id: id}
	o.byID[id] = g
	o.inRoom[id.room()]++
	o.last = max(o.last, int(id>>16))
	return g
}

func (o *affinityGroups) remove(g *affinityGroup) {
	delete(o.byID, g.id)
	o.inRoom[g.id.room()]--
	for _, name := range g.names {
		if o.byName[name] == g {
			delete(o.byName, name)
		}
	}
}

func (o *affinityGroups) setName(g *affinityGroup, name model.PortName) {
	o.byName[name] = g
	g.names = append(g.names, name)
}

var errTooManyGroups = errors.New("more than 65,535 Service ports with session affinity")

// create adds a group in the room that pickRoom chooses.
func (o *affinityGroups) create(recordsTimeout func(room int) bool) (*affinityGroup, error) {
	room := o.pickRoom(recordsTimeout)
	for _, anyRoom := range []bool{false, true} {
		for i := range maxAffinityID {
			n := (o.last+i)%maxAffinityID + 1
			if id := groupID(n); o.byID[id] == nil && (anyRoom || id.room() == room) {
				g := o.add(id)
				o.last = n
				return g, nil
			}
		}
	}
	return nil, errTooManyGroups
}

// pickRoom returns the room after the last one with as few groups as possible. If all have some, it prefers a room that
// records clients with the new group's timeout already, and has half as many groups more at most: otherwise many groups
// with many timeouts would need a chain for each timeout in each room.
func (o *affinityGroups) pickRoom(recordsTimeout func(room int) bool) int {
	fewest := slices.Min(o.inRoom[:])
	emptiest, recorded := -1, -1
	for i := range affinityRooms {
		room := (o.last + 1 + i) % affinityRooms
		n := o.inRoom[room]
		if emptiest < 0 && n == fewest {
			emptiest = room
		}
		if fewest > 0 && n <= fewest+1+fewest/2 && (recorded < 0 || n < o.inRoom[recorded]) && recordsTimeout(room) {
			recorded = room
		}
	}
	if recorded >= 0 {
		return recorded
	}
	return emptiest
}

// endpointID returns the id that clients of an endpoint are recorded with, if the group's list has it in the kernel.
func (o *affinityGroups) endpointID(id affinityID, list int, a netip.AddrPort) (affinityID, bool) {
	g := o.byID[id]
	if g == nil || list >= len(g.lists) {
		return 0, false
	}
	at, ok := g.lists[list].find(a)
	if !ok {
		return 0, false
	}
	return id.endpoint(g.lists[list].programmed[at].id), true
}
