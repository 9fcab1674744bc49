package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
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
