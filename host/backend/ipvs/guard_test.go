package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestGuardsMayExceedOneTransaction(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	const many = 45_000
	b.state.guarded = map[netip.Addr]bool{}
	for _, first := range []string{"10.96.0.0", "fd00:10:96::"} {
		a := netip.MustParseAddr(first)
		for range many {
			a = a.Next()
			b.state.guarded[a] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(b.state.guarded), netip.Addr.Compare)
	check := func(what string, r backend.Report, err error, changed, want int) {
		t.Helper()
		if err != nil || r.Elements != changed || r.Transactions > 1+changed/1000 || changed > many && r.Transactions < 3 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		_, _, guarded, err := b.rules.ReadMarks(context.Background())
		if err != nil || len(guarded) != want {
			t.Errorf("%s: %d addresses are guarded, want %d; %v", what, len(guarded), want, err)
		}
	}
	r, err := b.rules.Guard(context.Background(), all, nil) // into tables that do not exist yet
	check("all", r, err, 2*many, 2*many)
	p := web(t, 1)
	r, err = b.rules.Apply(context.Background(), p, nil)
	if err != nil || r.Elements > 20 {
		t.Errorf("program a frontend: %+v, %v", r, err)
	}
	for _, a := range all[:many+2] {
		delete(b.state.guarded, a)
	}
	r, err = b.rules.Guard(context.Background(), nil, all[:many+2])
	check("half", r, err, many+2, many-2)
	if r, err = b.rules.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
		t.Errorf("sent something to the same state: %+v, %v", r, err)
	}
}

// TestReturningFrontendIsGuardedAgain removes a frontend until its address and guard are released, and adds it again, all
// as deltas: its address must be guarded before it is local.
func TestReturningFrontendIsGuardedAgain(t *testing.T) {
	d := newMemEnv(t)
	p, none := web(t, 1), &plan.Plan{}
	none.Global = p.Global
	b := d.open()
	d.apply(b, p, nil)
	b.Close()
	b = d.open() // a restart reads the guard from the kernel
	d.apply(b, p, nil)
	d.apply(b, none, plan.Diff(p, none))
	for i := 0; len(b.state.guarded) > 0; i++ {
		if i == 10 {
			t.Fatalf("still guarded: %v", b.state.guarded)
		}
		d.now = d.now.Add(unbindDelay)
		d.apply(b, none, &plan.Delta{})
	}
	d.apply(b, p, plan.Diff(none, p))
	d.checkGuards(b, "the frontend is back")
}

// TestPoolWithoutEndpointsHasNoMark applies a delta twice that leaves one pool of a frontend without endpoints: the rules
// must not keep its mark, which is free for another pool then.
func TestPoolWithoutEndpointsHasNoMark(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	key := plan.Key{Addr: netip.MustParseAddr("198.51.100.7"), Port: 443, Protocol: model.TCP}
	pool := plan.Pool{Endpoints: []plan.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.1:8443"), Weight: 1}}}
	frontend := func(inside plan.Pool) *plan.Plan {
		f := &plan.Frontend{Key: key, Kind: plan.ExternalIP, Pool: inside, Outside: &pool,
			Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "https", Protocol: model.TCP}}
		return &plan.Plan{Global: plan.Global{MasqueradeMark: 0x4000}, Frontends: map[plan.Key]*plan.Frontend{key: f}}
	}
	prev, next := frontend(pool), frontend(plan.Pool{Verdict: plan.Drop})
	d.apply(b, prev, nil)
	delta := plan.Diff(prev, next)
	d.apply(b, next, delta)
	if _, marks, _, err := b.rules.ReadMarks(context.Background()); err != nil || marks[key].Inside != 0 {
		t.Errorf("the rules have mark %#x for a pool without endpoints, %v", marks[key].Inside, err)
	}
	if r := d.apply(b, next, delta); r.Messages > 0 {
		t.Errorf("the second apply writes %d messages", r.Messages)
	}
}
