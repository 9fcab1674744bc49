package nftables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// openLimited opens a backend with bounds of recorded clients.
func (d *testEnv) openLimited(l AffinityLimits) *Backend {
	d.Helper()
	return d.openWith(Options{Affinity: l})
}

func (d *testEnv) affinityUsage() AffinityUsage {
	d.Helper()
	u, err := ReadAffinityUsage(context.Background(), d.lab.Node.Fd())
	if err != nil {
		d.Fatal(err)
	}
	return u
}

// expectSpread connects from each client until some get another endpoint than before: nobody records them. All connect.
func (c *crowd) expectSpread(what string) {
	c.Helper()
	moves := 0
	for range 10 {
		for client, before := range c.endpoint {
			if c.askFrom(client) != before {
				moves++
			}
		}
		if moves > 0 {
			return
		}
	}
	c.Errorf("%s: no client gets another endpoint", what)
}

var twoServices = global + "service shop/a\n" +
	frontend("10.97.0.10:80/TCP ClusterIP masquerade=never affinity=3h", "1 2") +
	frontend("[fd00:10:97::a]:80/TCP ClusterIP masquerade=never affinity=3h", "1 2") + "service shop/b\n" +
	frontend("10.97.0.11:80/TCP ClusterIP masquerade=never affinity=3h", "1 2") +
	frontend("[fd00:10:97::b]:80/TCP ClusterIP masquerade=never affinity=3h", "1 2")

// TestCrowdLeavesRoomForOtherServices lets more clients connect to one Service than there is room for.
func TestCrowdLeavesRoomForOtherServices(t *testing.T) {
	d := newTestEnv(t, 2)
	p := parse(t, twoServices)
	b := d.openLimited(AffinityLimits{Reserved: 10, Shared: 5})
	defer b.Close()
	if _, err := b.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	count := probeCount(t)
	expectUsage := func(clients int, full ...string) {
		t.Helper()
		u := d.affinityUsage()
		var names []string
		for _, p := range u.Full {
			names = append(names, p.String())
		}
		if u.Counted != count || count && (u.Clients4 != clients || u.Clients6 != clients) || !slices.Equal(names, full) {
			t.Errorf("got %+v, want %d clients of each family, full %v", u, clients, full)
		}
	}
	expectUsage(0)
	known := d.newCrowd("10.97.0.11:80", "[fd00:10:97::b]:80")
	known.arrive(4)
	a := d.newCrowd("10.97.0.10:80", "[fd00:10:97::a]:80")
	a.next = known.next
	a.arrive(15)
	a.expectNoMoves("with room for all")
	expectUsage(19)
	late := d.newCrowd("10.97.0.10:80", "[fd00:10:97::a]:80")
	late.next = a.next
	late.arrive(15)
	late.expectSpread("without room")
	expectUsage(19, "shop/a:http")
	a.expectNoMoves("recorded before there was no more room")
	known.expectNoMoves("clients of the other Service")
	known.next = late.next
	known.arrive(6)
	known.expectNoMoves("new clients of the other Service")
	expectUsage(25, "shop/a:http")

	// A change of the limits replaces the tables, and keeps all clients that it has room for.
	for _, c := range []struct {
		limits  AffinityLimits
		clients int
	}{{AffinityLimits{Reserved: 20, Shared: 40}, 25}, {AffinityLimits{Reserved: 4, Shared: 30}, 25}, {AffinityLimits{Reserved: 4, Shared: 2}, 10}} {
		b := d.openLimited(c.limits)
		if r, err := b.Apply(context.Background(), p, nil); err != nil || r.Messages == 0 {
			t.Fatalf("%+v: %+v, %v", c.limits, r, err)
		}
		if r, err := b.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
			t.Fatalf("%+v: the second Apply: %+v, %v", c.limits, r, err)
		}
		expectUsage(c.clients)
		if c.clients == 25 {
			known.expectNoMoves(fmt.Sprintf("with %+v", c.limits))
			a.expectNoMoves(fmt.Sprintf("with %+v", c.limits))
		}
		b.Close()
	}
	d.expectPlan(p) // whoever reads does not know the limits
}

// probeCount reports whether the kernel counts the elements of sets.
func probeCount(t *testing.T) bool { return !missingFeatures(t)["element counts of sets"] }

func TestGroupsGetRoomsOfTheirOwn(t *testing.T) {
	o := newAffinityGroups()
	noRoom := func(int) bool { return false }
	seen := map[affinityID]bool{}
	create := func() *affinityGroup {
		t.Helper()
		g, err := o.create(noRoom)
		if err != nil {
			t.Fatal(err)
		}
		if g.id == 0 || g.id != g.id.group() {
			t.Fatalf("id %#x", g.id)
		}
		return g
	}
	var groups []*affinityGroup
	for range 40 * affinityRooms {
		g := create()
		if seen[g.id] {
			t.Fatalf("id %#x was used before", g.id)
		}
		seen[g.id] = true
		groups = append(groups, g)
		if len(groups) > affinityRooms/2 { // the older half leaves
			o.remove(groups[0])
			groups = groups[1:]
		}
		if most := slices.Max(o.inRoom[:]); most > 1 {
			t.Fatalf("%d groups in a room, of %d", most, len(groups))
		}
	}
	for range 10 * affinityRooms {
		create()
	}
	if most, fewest := slices.Max(o.inRoom[:]), slices.Min(o.inRoom[:]); most-fewest > 1 {
		t.Errorf("%d to %d groups in a room", fewest, most)
	}
	for len(o.byID) < maxAffinityID {
		create()
	}
	if _, err := o.create(noRoom); err != errTooManyGroups {
		t.Errorf("one too many: %v", err)
	}
}

func TestAffinityNamesParseAsPrinted(t *testing.T) {
	for room := range affinityRooms {
		l := learnChain{room, time.Duration(1+room*room) * time.Millisecond}
		if got, ok := parseLearnChain(l.String()); !ok || got != l {
			t.Errorf("%s: got %+v, %v", l, got, ok)
		}
		f := findChain{room / 3, room}
		if got, ok := parseFindChain(f.String()); !ok || got != f {
			t.Errorf("%s: got %+v, %v", f, got, ok)
		}
		s := newSchema(model.IPv4, Slots{}, AffinityLimits{})
		for _, want := range []*set{s.clientsSet(f), s.clientsSet(clientSet{room, sharedRoom}), s.endpointsSet(room), s.targetsSet(room), s.fullSet()} {
			if got := newSchema(model.IPv4, Slots{}, AffinityLimits{}).find(want.name); got == nil || got.name != want.name {
				t.Errorf("set %s: found %+v", want.name, got)
			}
		}
	}
	for _, name := range []string{"", "learn_affinity_", "learn_affinity_64_1ms", "learn_affinity_1_0ms", "learn_affinity_01_1ms", "learn_affinity_1_1",
		"find_affinity_1", "find_affinity_-1_1", "find_affinity_0_64", "affinity_0_64", "affinity_0_-1", "affinity_shared", "affinity__0", "affinity_00_0", "affinity_1024_0", "affinity_endpoints_1024", "affinity_targets_99999999999", "find_affinity_1024_0"} {
		if _, ok := parseLearnChain(name); ok {
			t.Errorf("%q is a learn chain", name)
		}
		if _, ok := parseFindChain(name); ok {
			t.Errorf("%q is a find chain", name)
		}
		if s := newSchema(model.IPv4, Slots{}, AffinityLimits{}).find(name); s != nil {
			t.Errorf("%q is a set", name)
		}
	}
}

// TestManyServicesWithAffinity programs more Service ports than there are rooms. It counts the cost of a change.
func TestManyServicesWithAffinity(t *testing.T) {
	testenv.OnceForAllKernels(t)
	cost := func(services int) (deltas []int) {
		d := newTestEnv(t, 0)
		w := &sizeRecorder{Transport: d.b.conn.Transport}
		d.b.conn.Transport = w
		p := cluster(services, 10)
		for k, f := range maps.Clone(p.Frontends) {
			g := *f
			g.Affinity = 3 * time.Hour
			p.Frontends[k] = &g
		}
		d.mustApply(p, nil)
		if most := slices.Max(w.sizes); most > 2*softTxBytes {
			t.Errorf("%d Services: a transaction of %d bytes", services, most)
		}
		if r := d.report(p, nil); r.Messages > 0 {
			t.Errorf("%d Services: the second Apply: %+v", services, r)
		}
		for generation := range 3 {
			f := clusterFrontend(services/2, 10, 1+generation)
			f.Affinity = 3 * time.Hour
			r := d.report(p, replaceFrontend(p, f))
			deltas = append(deltas, r.Elements, r.Messages, r.Transactions)
		}
		return deltas
	}
	small, large := cost(2*affinityRooms), cost(3000)
	if !slices.Equal(small, large) || small[2] != 1 {
		t.Errorf("changes of an endpoint cost %v elements, messages and transactions with few Services, %v with many", small, large)
	}
}
