package nftables

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// manyTimeouts is a plan of n Services, each of which wants a timeout of its own.
func manyTimeouts(n int) *plan.Plan {
	p := cluster(n, 2)
	i := 0
	for _, k := range p.Keys() {
		f := *p.Frontends[k]
		f.Affinity = time.Duration(1+86_399*i/n) * time.Second
		p.Frontends[k] = &f
		i++
	}
	return plan.Fit(p, Caps())
}

// affinityChains counts the chains that record and find clients, as the kernel has them.
func (d *testEnv) affinityChains() (n int) {
	d.Helper()
	b := d.open()
	defer b.Close()
	if mismatch, err := b.tables[0].load(); mismatch != nil || err != nil {
		d.Fatal(mismatch, err)
	}
	return len(b.tables[0].affinity.learn) + len(b.tables[0].affinity.find)
}

// TestManyTimeoutsNeedFewChains: neither the number of Services nor that of timeouts multiplies with the rooms.
func TestManyTimeoutsNeedFewChains(t *testing.T) {
	d := newTestEnv(t, 0)
	w := &sizeRecorder{Transport: d.b.conn.Transport}
	d.b.conn.Transport = w
	p := manyTimeouts(1000)
	d.mustApply(p, nil)
	d.expectPlan(p)
	if most := slices.Max(w.sizes); most > softTxBytes+structureRoom {
		t.Errorf("a transaction of %d bytes", most)
	}
	if r := d.report(p, nil); r.Messages > 0 {
		t.Errorf("the second Apply: %+v", r)
	}
	const most = affinityRooms + 8*affinityRooms // to find, and to record
	if n := d.affinityChains(); n > most {
		t.Errorf("%d chains of session affinity, want %d at most", n, most)
	}
	none := &plan.Plan{Global: p.Global}
	d.mustApply(none, plan.Diff(p, none))
	if n := d.affinityChains(); n > maxUnusedChains {
		t.Errorf("%d chains of session affinity without a Service", n)
	}
}

// TestChangingServicesLeaveNoChains: groups get other rooms, and other timeouts, all the time.
func TestChangingServicesLeaveNoChains(t *testing.T) {
	d := newTestEnv(t, 0)
	p := cluster(3, 2)
	d.mustApply(p, nil)
	for i := range 2 * affinityRooms {
		next := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
		f := *next.Frontends[clusterFrontend(i%3, 2, 0).Key]
		f.Affinity = time.Duration(i%25) * time.Second
		if f.Owner.Port = ""; i%2 == 0 {
			f.Owner.Port = fmt.Sprint("p", i)
		}
		next.Frontends[f.Key] = &f
		d.mustApply(next, plan.Diff(p, next))
		if p = next; i%40 == 0 {
			d.expectPlan(p)
			d.restart()
			if r := d.report(p, nil); r.Messages > 0 {
				t.Errorf("after a restart: %+v", r)
			}
		}
	}
	if n := d.affinityChains(); n > maxUnusedChains+2*3 {
		t.Errorf("%d chains of session affinity for three Services", n)
	}
}

// TestUnusedChainsAreCounted compares the count with the chains.
func TestUnusedChainsAreCounted(t *testing.T) {
	d := newTestEnv(t, 0)
	r := rand.New(rand.NewPCG(1, 2))
	p := cluster(40, 1)
	d.mustApply(p, nil)
	for i := range 60 {
		next := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
		for range 1 + r.IntN(12) {
			f := clusterFrontend(r.IntN(40), 1, 0)
			if f.Affinity = time.Duration(r.IntN(20)) * time.Second; r.IntN(3) == 0 {
				delete(next.Frontends, f.Key)
			} else {
				next.Frontends[f.Key] = f
			}
		}
		delta := plan.Diff(p, next)
		if p = next; i%10 == 9 {
			delta = nil
			d.restart()
		}
		d.mustApply(p, delta)
		a := d.b.tables[0].affinity
		unused := 0
		for _, list := range []map[any]int{untyped(a.learn), untyped(a.find)} {
			for c, users := range list {
				actual := 0
				for _, h := range d.b.tables[0].frontends {
					for _, l := range h.learn {
						actual += count1(c == any(l))
					}
					for scope := range scopes {
						for _, f := range h.scopes[scope].find {
							actual += count1(c == any(f))
						}
					}
				}
				if unused += count1(users == 0); users != actual {
					t.Fatalf("step %d: %v has %d users, counted as %d", i, c, actual, users)
				}
			}
		}
		if unused != a.unused || unused > maxUnusedChains || a.newBytes != 0 {
			t.Fatalf("step %d: %d unused chains, counted as %d; %d bytes are pending", i, unused, a.unused, a.newBytes)
		}
	}
	d.expectPlan(p)
}

func untyped[C comparable](users map[C]int) map[any]int {
	out := map[any]int{}
	for c, n := range users {
		out[c] = n
	}
	return out
}

func count1(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func TestGroupsPreferRoomsThatRecordTheirTimeout(t *testing.T) {
	for seed := range uint64(4) {
		r, o := rand.New(rand.NewPCG(seed, 0)), newAffinityGroups()
		timeouts := 1 + r.IntN(754)
		chains := map[learnChain]bool{}
		for i := range 3000 {
			timeout := time.Duration(1 + r.IntN(timeouts))
			g, err := o.create(func(room int) bool { return chains[learnChain{room, timeout}] })
			if err != nil {
				t.Fatal(err)
			}
			chains[learnChain{g.id.room(), timeout}] = true
			if most, fewest := slices.Max(o.inRoom[:]), slices.Min(o.inRoom[:]); most > 1+fewest+1+fewest/2 {
				t.Fatalf("seed %d: %d to %d groups in a room", seed, fewest, most)
			} else if i < affinityRooms && most > 1 {
				t.Fatalf("seed %d: %d groups share a room, of %d", seed, most, i+1)
			}
		}
		if len(chains) > affinityRooms+2*timeouts {
			t.Errorf("seed %d: %d chains for %d timeouts", seed, len(chains), timeouts)
		}
	}
}

// BenchmarkManyTimeouts programs 3,000 Services whose timeouts of session affinity differ, reads them, and adds another.
func BenchmarkManyTimeouts(b *testing.B) {
	p := manyTimeouts(3000)
	clean := func(d *testEnv) {
		b.Helper()
		if _, err := Cleanup(context.Background(), d.lab.Node.Fd()); err != nil {
			b.Fatal(err)
		}
		d.restart()
	}
	b.Run("program", func(b *testing.B) {
		d := newTestEnv(b, 0)
		for b.Loop() {
			d.mustApply(p, nil)
			b.StopTimer()
			clean(d)
			b.StartTimer()
		}
	})
	b.Run("read", func(b *testing.B) {
		d := newTestEnv(b, 0)
		d.mustApply(p, nil)
		for b.Loop() {
			if _, err := d.b.Read(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		d := newTestEnv(b, 0)
		d.mustApply(p, nil)
		i := 0
		for b.Loop() {
			i++
			f := clusterFrontend(i%3000, 2, 0)
			f.Affinity = time.Duration(1+i%29) * time.Second
			d.mustApply(p, replaceFrontend(p, f))
		}
	})
}
