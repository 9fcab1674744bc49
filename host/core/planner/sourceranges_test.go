package planner

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// rangedService returns a Service with ranges of one address. Each generation has others.
func rangedService(namespace string, i, ports, ranges, generation int) model.Change {
	s := &model.Service{Name: model.Name{Namespace: namespace, Name: fmt.Sprint("s", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}, LoadBalancerIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}}
	for j := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", j), Protocol: model.TCP, Port: uint16(80 + j)})
	}
	for j := range ranges {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(generation), byte(j >> 8), byte(j)}), 32))
	}
	return model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s}
}

// changedRanges returns how many source ranges a delta adds and deletes.
func changedRanges(d *plan.Delta) (n int) {
	for _, c := range d.Changes {
		var had, has map[netip.Prefix]bool
		for at, f := range map[*map[netip.Prefix]bool]*plan.Frontend{&had: c.Old, &has: c.New} {
			*at = map[netip.Prefix]bool{}
			if f != nil {
				for _, r := range f.SourceRanges {
					(*at)[r] = true
				}
			}
		}
		for r := range had {
			if !has[r] {
				n++
			}
		}
		for r := range has {
			if !had[r] {
				n++
			}
		}
	}
	return n
}

// TestChangesOfSourceRangesDoNotDelayAnotherNamespace: each step changes the ranges of few frontends, whether their number
// changes or not, and the Service of another namespace is planned in the same step or the next one.
func TestChangesOfSourceRangesDoNotDelayAnotherNamespace(t *testing.T) {
	for _, c := range []struct {
		name                           string
		services, ports, before, after int
	}{
		{"as many others", 10, 1, 1000, 1000},
		{"others, one less", 10, 1, 1000, 999},
		{"all are new", 10, 1, 0, 1000},
		{"all are deleted", 10, 1, 1000, 0},
		{"of 20 ports", 3, 20, 500, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(testSettings(), nativePlugins)
			planInSteps(p)
			apply := func(ranges, generation int) {
				for i := range c.services {
					p.Apply([]model.Change{rangedService("tenant", i, c.ports, ranges, generation)})
				}
			}
			apply(c.before, 0)
			p.Apply([]model.Change{{Kind: model.Synced}})
			p.PlanNow(time.Unix(1000, 0))
			apply(c.after, 1)
			all, most, steps := 0, 0, 0
			changed := -1 // the step in which the other namespace's Service has changed; -1: it is planned
			for remaining := 1; remaining > 0; steps++ {
				if steps == 10_000 {
					t.Fatal("no end")
				}
				if changed < 0 {
					changed = steps
					p.Apply([]model.Change{rangedService("victim", 100, 1, 1, changed%200)})
				}
				step := p.PlanNow(time.Unix(1000, 0))
				f := p.Current().Frontends[plan.Key{Addr: netip.MustParseAddr("203.0.113.100"), Port: 80, Protocol: model.TCP}]
				if f != nil && f.SourceRanges[0].Addr().As4()[1] == byte(changed%200) {
					changed = -1
				} else if steps > changed { // every other step is for the backlog
					t.Fatalf("step %d: the other namespace's Service has not been planned since step %d", steps, changed)
				}
				n := changedRanges(step.Delta)
				all, most, remaining = all+n, max(most, n), step.Remaining
			}
			if want := c.services * c.ports * (c.before + c.after); all < want || all > want+2*steps+2*c.services*c.ports { // all sources are a range on the way
				t.Errorf("%d ranges changed, want %d", all, want)
			}
			if most > 2*maxStepCost/elementCost {
				t.Errorf("a step changes %d ranges", most)
			}
			t.Logf("%d steps, %d ranges at most", steps, most)
		})
	}
}
