package ipvs

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/plan"
)

func (d *memEnv) mustOpen() *Backend {
	d.Helper()
	b, err := d.open()
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { b.Close() })
	return b
}

func hasExactly(m map[netip.Addr]bool, want ...netip.Addr) bool {
	return slices.Equal(slices.SortedFunc(maps.Keys(m), netip.Addr.Compare), want)
}

func TestSettingsThatSomebodyChangesArePutRightAndNamed(t *testing.T) {
	d := newMemEnv(t)
	b := d.mustOpen()
	var said bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&said, nil))
	p := web(t, 1)
	d.apply(b, p, nil)
	look := map[string]func() error{
		"Drifted": func() error { _, err := b.Drifted(context.Background()); return err },
		"Apply":   func() error { _, err := b.Apply(context.Background(), p, nil); return err },
	}
	for name, do := range look {
		for _, s := range Sysctls(b.o) {
			said.Reset()
			d.sysctls[s.Name] = 0
			if err := do(); err != nil {
				t.Fatal(err)
			}
			if d.sysctls[s.Name] != s.Want || !strings.Contains(said.String(), "level=WARN") || !strings.Contains(said.String(), s.Name) {
				t.Errorf("%s: %s is %d, said %q", name, s.Name, d.sysctls[s.Name], said.String())
			}
			if said.Reset(); do() != nil || said.Len() > 0 {
				t.Errorf("%s: %s: said again: %q", name, s.Name, said.String())
			}
		}
	}
}

func TestASettingThatCannotBePutRightIsAnErrorWhereNothingWorksWithoutIt(t *testing.T) {
	d := newMemEnv(t)
	b := d.mustOpen()
	var said bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&said, nil))
	p := web(t, 1)
	d.apply(b, p, nil)
	d.sysctls["net.ipv4.vs.expire_nodest_conn"] = -1
	for range 3 {
		if moved, err := b.Drifted(context.Background()); moved || err != nil {
			t.Errorf("moved %v, %v", moved, err)
		}
	}
	if n := strings.Count(said.String(), "expire_nodest_conn"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
	d.sysctls["net.ipv4.vs.conntrack"] = -1
	if moved, err := b.Drifted(context.Background()); !moved || err != nil {
		t.Errorf("moved %v, %v", moved, err)
	}
	if _, err := b.Apply(context.Background(), p, nil); err == nil || !strings.Contains(err.Error(), "net.ipv4.vs.conntrack") || !strings.Contains(err.Error(), initOnlyRemedy) {
		t.Errorf("apply: %v", err)
	}
	delete(d.sysctls, "net.ipv4.vs.conntrack")
	d.apply(b, p, nil)
}

func TestAddressesFollowTheNodesOwn(t *testing.T) {
	for name, local := range map[string]bool{"on a link": false, "by a route": true} {
		t.Run(name, func(t *testing.T) {
			d := newMemEnv(t)
			vip := netip.MustParseAddr("203.0.113.5")
			p := frontend(t, "203.0.113.5:80/TCP  ExternalIP", "", []int{1})
			own := d.nodeLocal
			if local {
				own = d.localRoutes
			}
			moved := func(b *Backend, want bool) {
				t.Helper()
				if got, err := b.Drifted(context.Background()); got != want || err != nil {
					t.Errorf("moved %v, %v; want %v", got, err, want)
				}
			}
			own[vip] = true
			b := d.mustOpen()
			d.apply(b, p, nil)
			for range 2 { // and after a restart
				moved(b, false)
				if len(d.bound) > 0 {
					t.Errorf("bound: %v", d.bound)
				}
				b.Close()
				b = d.mustOpen()
				d.apply(b, p, nil)
			}
			delete(own, vip)
			moved(b, true)
			d.apply(b, p, nil)
			moved(b, false)
			if !hasExactly(d.bound, vip) {
				t.Errorf("bound: %v", d.bound)
			}
			d.checkGuards(b, name)
			if own[vip] = true; local {
				return // the link has it too: nothing tells
			}
			moved(b, true)
			d.apply(b, p, nil)
			moved(b, false)
			if _, _, guarded, err := b.rules.ReadMarks(context.Background()); len(d.bound)+len(guarded) > 0 || err != nil {
				t.Errorf("bound: %v, guarded: %v, %v", d.bound, guarded, err)
			}
		})
	}
}

// TestAddressesOfALinkFromBeforeAreMoved is a change of ipvs.interface.
func TestAddressesOfALinkFromBeforeAreMoved(t *testing.T) {
	d := newMemEnv(t)
	p := web(t, 1)
	gone := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	both := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
	maps.Copy(both.Frontends, gone.Frontends)
	b := d.mustOpen()
	d.apply(b, both, nil)
	b.Close()
	vip := netip.MustParseAddr("10.96.0.80")
	d.otherLinks, d.bound = d.bound, map[netip.Addr]bool{}
	order := &addrRecorder{fakeKernel: d.fakeKernel}
	b = d.mustOpen()
	b.links = order
	d.apply(b, p, nil)
	if len(d.otherLinks) > 0 || !hasExactly(d.bound, vip) || !slices.Equal(order.calls, []string{"add 10.96.0.80", "leave 10.96.0.80", "leave 203.0.113.5"}) {
		t.Errorf("bound %v, strays %v, %v", d.bound, d.otherLinks, order.calls)
	}
	d.settle(b, p)
	if _, _, guarded, err := b.rules.ReadMarks(context.Background()); !hasExactly(guarded, vip) || err != nil {
		t.Errorf("guarded: %v, %v", guarded, err)
	}
	if moved, err := b.Drifted(context.Background()); moved || err != nil {
		t.Errorf("moved %v, %v", moved, err)
	}
	d.otherLinks[netip.MustParseAddr("10.96.0.99")] = true
	if moved, err := b.Drifted(context.Background()); !moved || err != nil {
		t.Errorf("another stray: moved %v, %v", moved, err)
	}
}

// addrRecorder notes what is done to addresses.
type addrRecorder struct {
	*fakeKernel
	calls []string
}

func (o *addrRecorder) addAddr(a netip.Addr) error {
	o.calls = append(o.calls, "add "+a.String())
	return o.fakeKernel.addAddr(a)
}

func (o *addrRecorder) delFromOtherLinks(a netip.Addr) error {
	o.calls = append(o.calls, "leave "+a.String())
	return o.fakeKernel.delFromOtherLinks(a)
}

// TestAnAddressIsLookedAtBeforeItIsTakenAway has somebody put another in its place.
func TestAnAddressIsLookedAtBeforeItIsTakenAway(t *testing.T) {
	d := newMemEnv(t)
	b := d.mustOpen()
	p := web(t, 1)
	none := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	d.apply(b, p, nil)
	d.apply(b, none, plan.Diff(p, none))
	clear(d.bound)
	theirs := &addrRecorder{fakeKernel: d.fakeKernel}
	b.links = delRecorder{theirs}
	d.settle(b, none)
	if len(theirs.calls) > 0 {
		t.Errorf("%v", theirs.calls)
	}
}

type delRecorder struct{ *addrRecorder }

func (o delRecorder) delAddr(a netip.Addr) error {
	o.calls = append(o.calls, "del "+a.String())
	return nil
}
