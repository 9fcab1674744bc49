package ipvs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// TestKillingBetweenAnyTwoRequestsLeavesOldOrNewDestinations: each endpoint is in the old or the new plan, every
// frontend of both has endpoints with a weight above 0, and the next start programs the rest.
func TestKillingBetweenAnyTwoRequestsLeavesOldOrNewDestinations(t *testing.T) {
	d := newEnv(t)
	prev := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1, 3, 0})
	next := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{0, 1, 2, 5})
	for k, f := range web(t, 1, 1).Frontends {
		next.Frontends[k] = f
	}
	for n := 1; ; n++ {
		b := d.open()
		d.apply(b, prev, nil)
		f := inject(b)
		f.fault = &fault{after: n, dead: true}
		_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
		fired := f.fault.fired
		b.Close()
		b = d.open()
		got, rerr := b.Read(context.Background())
		if rerr != nil {
			t.Fatal(rerr)
		}
		if fired != (err != nil) {
			t.Fatalf("message %d: fired %v, error %v", n, fired, err)
		}
		for k, f := range got.Frontends {
			if f.Pool.Total() == 0 {
				t.Errorf("message %d: %s has no endpoint with a weight above 0", n, k)
			}
			for _, m := range f.Pool.Endpoints {
				if !hasEndpoint(prev.Frontends[k], m) && !hasEndpoint(next.Frontends[k], m) && !(k.Addr.String() == "203.0.113.5" && m.Weight == 0) {
					t.Errorf("message %d: %s has %v, which is neither old nor new", n, k, m)
				}
			}
		}
		for k := range prev.Frontends {
			if got.Frontends[k] == nil {
				t.Errorf("message %d: %s is gone", n, k)
			}
		}
		d.apply(b, next, nil)
		b.Close()
		if !fired {
			t.Logf("%d messages", n-1)
			return
		}
	}
}

func TestKillingRandomChangesLeavesOldOrNewDestinations(t *testing.T) {
	testenv.OnceForAllKernels(t) // TestKillingBetweenAnyTwoRequests… runs there, on the real IPVS
	d := newMemEnv(t)
	kills := 0
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		g := testgen.NewPlans(seed, testgen.PlanOptions{Ports: 4, Endpoints: 4})
		prev := g.Plan()
		next := plan.Fit(g.Next(g.Next(g.Next(prev))), Caps())
		prev = plan.Fit(prev, Caps())
		for n := 1; ; n += 1 + random.IntN(3) {
			b := d.open()
			d.apply(b, prev, nil)
			f := inject(b)
			f.fault = &fault{after: n, dead: true}
			_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
			fired := f.fault.fired
			if fired == (err == nil) {
				t.Fatalf("seed %d message %d: fired %v, error %v", seed, n, fired, err)
			}
			b.Close()
			b = d.open()
			d.checkBetween(b, fmt.Sprintf("seed %d message %d", seed, n), prev, next)
			d.checkGuards(b, fmt.Sprintf("seed %d message %d", seed, n))
			d.apply(b, next, nil)
			b.Close()
			if !fired {
				break
			}
			kills++
		}
	}
	t.Logf("%d kills", kills)
}

// checkBetween checks that frontends of both plans exist, and that each endpoint is in either plan.
func (d *memEnv) checkBetween(b *Backend, what string, prev, next *plan.Plan) {
	d.Helper()
	prev = plan.Normalize(prev, b.Caps())
	next = plan.Normalize(next, b.Caps())
	got, err := b.Read(context.Background())
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	for k, was := range prev.Frontends {
		is, want := got.Frontends[k], next.Frontends[k]
		if want == nil || is == nil {
			if want != nil {
				d.Errorf("%s: %s is gone", what, k)
			}
			continue
		}
		forwards := was.Pool.Verdict == plan.Forward && want.Pool.Verdict == plan.Forward
		if forwards && is.Pool.Total() == 0 {
			d.Errorf("%s: %s has no endpoint with a weight above 0", what, k)
		}
		for _, m := range is.Pool.Endpoints {
			if !hasAddr(was, m) && !hasAddr(want, m) {
				d.Errorf("%s: %s has %s, which neither plan has", what, k, m.Addr)
			}
		}
	}
	for k := range got.Frontends {
		if prev.Frontends[k] == nil && next.Frontends[k] == nil {
			d.Errorf("%s: %s is in neither plan", what, k)
		}
	}
}

// checkGuards checks that no packet can be misdirected: each frontend of the nftables rules has a local address, and
// each address of the link is guarded.
func (d *memEnv) checkGuards(b *Backend, what string) {
	d.Helper()
	s, err := b.load(context.Background())
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	for k := range s.plan.Frontends {
		if !k.IsNodePort() && !s.bound[k.Addr] {
			d.Errorf("%s: packets to %s pass the nftables rules and leave by the default route", what, k)
		}
	}
	for a := range s.bound {
		if !s.guardsRead[a] {
			d.Errorf("%s: %s is not guarded", what, a)
		}
	}
	for k, v := range s.servers {
		if k.mark == 0 && s.bound[k.addr] && !s.listed[plan.Key{Addr: k.addr, Port: k.port, Protocol: k.proto}] && !s.guardsRead[k.addr] {
			d.Errorf("%s: %s forwards (to %d destinations) without nftables rules", what, k, len(v.destinations))
		}
	}
}
