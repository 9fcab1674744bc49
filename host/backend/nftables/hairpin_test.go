package nftables

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// hairpins returns the addresses that have a hairpin entry, of IPv4.
func (d *testEnv) hairpins() (out []string) {
	d.Helper()
	text, err := d.nft("", "list", "set", "ip", "sluice", "hairpin")
	if err != nil {
		d.Fatal(text, err)
	}
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n\t{},=", r) }) {
		if a, err := netip.ParseAddr(f); err == nil && (len(out) == 0 || out[len(out)-1] != a.String()) {
			out = append(out, a.String())
		}
	}
	slices.Sort(out)
	return out
}

// withRemote returns a plan whose endpoints are on another node if remote says so.
func withRemote(p *plan.Plan, remote func(netip.Addr) bool) *plan.Plan {
	out := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	for k, f := range p.Frontends {
		n := *f
		n.Pool.Endpoints = slices.Clone(f.Pool.Endpoints)
		for i := range n.Pool.Endpoints {
			e := &n.Pool.Endpoints[i]
			e.Remote = remote(e.Addr.Addr())
		}
		out.Frontends[k] = &n
	}
	return out
}

// TestOnlyEndpointsThatMayBeOnThisNodeHaveHairpinEntries, with deltas and after a restart, and the kernel's other state is the
// same. An address keeps its entry while one frontend has the endpoint on this node.
func TestOnlyEndpointsThatMayBeOnThisNodeHaveHairpinEntries(t *testing.T) {
	d := newTestEnv(t, 0)
	bare := parse(t, service(frontend("10.96.0.9:80/TCP ClusterIP masquerade=never", "1 2"),
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "2 3")))
	var last *plan.Plan
	for step, c := range []struct {
		remote string // addresses
		want   []string
	}{
		{"", []string{"10.244.0.1", "10.244.0.2", "10.244.0.3"}},
		{"10.244.0.2 10.244.0.3", []string{"10.244.0.1"}},
		{"10.244.0.1 10.244.0.3", []string{"10.244.0.2"}},
		{"10.244.0.1 10.244.0.2 10.244.0.3", nil},
		{"10.244.0.2", []string{"10.244.0.1", "10.244.0.3"}},
	} {
		p := withRemote(bare, func(a netip.Addr) bool { return slices.Contains(strings.Fields(c.remote), a.String()) })
		var delta *plan.Delta
		if last != nil {
			delta = plan.Diff(last, p)
		}
		r, err := d.b.Apply(context.Background(), p, delta)
		if err != nil || last != nil && r.Elements > 3 {
			t.Fatalf("step %d: %+v, %v", step, r, err)
		}
		if got := d.hairpins(); !slices.Equal(got, c.want) {
			t.Errorf("step %d: hairpin entries of %v, want %v", step, got, c.want)
		}
		d.expectPlan(bare)
		last = p
		if step%2 == 0 {
			continue
		}
		d.restart()
		if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r != (backend.Report{}) {
			t.Errorf("step %d: a restart wrote %+v, %v", step, r, err)
		}
	}
	one := withRemote(bare, func(a netip.Addr) bool { return a.String() == "10.244.0.2" })
	for k, f := range one.Frontends { // one of its two frontends has it on this node
		if k.Addr == netip.MustParseAddr("10.96.0.10") {
			f.Pool.Endpoints[0].Remote = false
		}
	}
	for _, restart := range []bool{false, true} {
		if restart {
			d.restart()
		}
		if _, err := d.b.Apply(context.Background(), one, nil); err != nil {
			t.Fatal(err)
		}
		if got := d.hairpins(); len(got) != 3 {
			t.Errorf("restarted %t: hairpin entries of %v, want all", restart, got)
		}
	}
}

// TestManyHairpinEntriesAreDeletedInParts: those of a version that made them for all endpoints.
func TestManyHairpinEntriesAreDeletedInParts(t *testing.T) {
	testenv.OnceForAllKernels(t)
	const services, endpoints = 300, 20
	d := newTestEnv(t, 0)
	p := cluster(services, endpoints)
	d.report(p, nil)
	if n := len(d.hairpins()); n != services*endpoints {
		t.Fatalf("%d hairpin entries", n)
	}
	d.restart()
	w := &sizeRecorder{Transport: d.b.conn.Transport}
	d.b.conn.Transport = w
	remote := withRemote(p, func(a netip.Addr) bool { return a.As4()[3] != 1 })
	want := 0
	for _, f := range remote.Frontends {
		for _, e := range f.Pool.Endpoints {
			if !e.Remote {
				want++
			}
		}
	}
	r := d.report(remote, nil)
	if r.Elements != services*endpoints-want || r.Transactions < 2 || slices.Max(w.sizes) > softTxBytes*2 {
		t.Errorf("%+v, the largest transaction has %d bytes, want %d elements", r, slices.Max(w.sizes), services*endpoints-want)
	}
	if n := len(d.hairpins()); n != want || want == 0 {
		t.Errorf("%d hairpin entries, want %d", n, want)
	}
	d.expectPlan(p)
}

// TestFrontendThatKeepsItsStateKeepsItsHairpinEntries: the new version of a frontend cannot be programmed.
func TestFrontendThatKeepsItsStateKeepsItsHairpinEntries(t *testing.T) {
	d := newTestEnv(t, 0)
	d.apply(service(frontend("10.96.0.9:80/TCP ClusterIP masquerade=never", "1 2"), frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "3")))
	wrong := parse(t, service(frontend("10.96.0.9:80/TCP ClusterIP masquerade=never", "1 2"), frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "4")))
	for k, f := range wrong.Frontends {
		if k.Addr == netip.MustParseAddr("10.96.0.9") {
			f.Pool.Endpoints[0].Addr = netip.MustParseAddrPort("[fd00::1]:80")
		}
	}
	d.restart()
	for range 2 {
		if _, err := d.b.Apply(context.Background(), wrong, nil); err == nil {
			t.Error("no error")
		}
		if got := d.hairpins(); !slices.Equal(got, []string{"10.244.0.1", "10.244.0.2", "10.244.0.4"}) {
			t.Errorf("hairpin entries of %v", got)
		}
	}
	if _, err := d.b.Apply(context.Background(), parse(t, service(frontend("10.96.0.9:80/TCP ClusterIP masquerade=never", "2"))), nil); err != nil {
		t.Fatal(err)
	}
	if got := d.hairpins(); !slices.Equal(got, []string{"10.244.0.2"}) {
		t.Errorf("hairpin entries of %v", got)
	}
}
