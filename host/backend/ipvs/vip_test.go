package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestVIPsThatBecomeOrCeaseToBeTheNodesOwnLeaveOrJoinTheLink(t *testing.T) {
	for name, local := range map[string]bool{"on a link": false, "by a route": true} {
		t.Run(name, func(t *testing.T) {
			d := newMemEnv(t)
			vip := netip.MustParseAddr("203.0.113.5")
			p := frontend(t, "203.0.113.5:80/TCP  ExternalIP", "", []int{1})
			own := d.nodeLocal
			if local {
				own = d.localRoutes
			}
			drifted := func(b *Backend, want bool) {
				t.Helper()
				if got, err := b.Drifted(context.Background()); got != want || err != nil {
					t.Errorf("drifted %v, %v; want %v", got, err, want)
				}
			}
			own[vip] = true
			b := d.open()
			d.apply(b, p, nil)
			for range 2 { // the second time after a restart
				drifted(b, false)
				if len(d.bound) > 0 {
					t.Errorf("bound: %v", d.bound)
				}
				b.Close()
				b = d.open()
				d.apply(b, p, nil)
			}
			delete(own, vip)
			drifted(b, true)
			d.apply(b, p, nil)
			drifted(b, false)
			if !hasExactly(d.bound, vip) {
				t.Errorf("bound: %v", d.bound)
			}
			d.checkGuards(b, name)
			if own[vip] = true; local {
				return // undetectable: the address is also on the link
			}
			drifted(b, true)
			d.apply(b, p, nil)
			drifted(b, false)
			if _, _, guarded, err := b.rules.ReadMarks(context.Background()); len(d.bound)+len(guarded) > 0 || err != nil {
				t.Errorf("bound: %v, guarded: %v, %v", d.bound, guarded, err)
			}
		})
	}
}

func TestVIPsFollowAddressesMovedByKeepalived(t *testing.T) {
	d := newEnv(t)
	d.mustRun("ip", "link", "add", "up7", "type", "dummy")
	d.mustRun("ip", "link", "set", "up7", "up")
	d.mustRun("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	b := d.open()
	p := frontend(t, "203.0.113.5:80/TCP  ExternalIP", "", []int{1})
	d.apply(b, p, nil)
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(when string, own bool) {
		t.Helper()
		d.ask(d.Client, "tcp", "203.0.113.5:80")
		_, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout)
		if own && err != nil || !own && !testnet.Refused(err) {
			t.Errorf("%s: connecting to the node's own server: %v", when, err)
		}
		if on := strings.Contains(d.mustRun("ip", "-br", "addr"), DefaultLink+" "); on && strings.Contains(d.linkAddrs(), "203.0.113.5/32") == own {
			t.Errorf("%s: %s", when, d.linkAddrs())
		}
		if d.repairDrift(b, p) {
			t.Errorf("%s: drifted without a reason", when)
		}
	}
	check("the node's own", true)
	d.mustRun("ip", "addr", "del", "203.0.113.5/32", "dev", "up7")
	if !d.repairDrift(b, p) {
		t.Error("the removal is not detected")
	}
	check("lost", false)
	d.mustRun("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	if !d.repairDrift(b, p) {
		t.Error("the return is not detected")
	}
	check("back", true)
}

// TestVIPsMoveFromThePreviousLink changes ipvs.interface.
func TestVIPsMoveFromThePreviousLink(t *testing.T) {
	d := newMemEnv(t)
	p := web(t, 1)
	gone := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	both := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
	maps.Copy(both.Frontends, gone.Frontends)
	b := d.open()
	d.apply(b, both, nil)
	b.Close()
	vip := netip.MustParseAddr("10.96.0.80")
	d.otherLinks, d.bound = d.bound, map[netip.Addr]bool{}
	order := &addrRecorder{fakeKernel: d.fakeKernel}
	b = d.open()
	b.links = order
	d.apply(b, p, nil)
	if len(d.otherLinks) > 0 || !hasExactly(d.bound, vip) || !slices.Equal(order.calls, []string{"add 10.96.0.80", "leave 10.96.0.80", "leave 203.0.113.5"}) {
		t.Errorf("bound %v, on other links %v, requests %v", d.bound, d.otherLinks, order.calls)
	}
	d.settle(b, p)
	if _, _, guarded, err := b.rules.ReadMarks(context.Background()); !hasExactly(guarded, vip) || err != nil {
		t.Errorf("guarded: %v, %v", guarded, err)
	}
	if drifted, err := b.Drifted(context.Background()); drifted || err != nil {
		t.Errorf("drifted %v, %v", drifted, err)
	}
	d.otherLinks[netip.MustParseAddr("10.96.0.99")] = true
	if drifted, err := b.Drifted(context.Background()); !drifted || err != nil {
		t.Errorf("another address on another link: drifted %v, %v", drifted, err)
	}
}

// addrRecorder records requests that change addresses.
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

func TestAnAddressReplacedByAnotherProgramIsNotDeleted(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
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

func hasExactly(m map[netip.Addr]bool, want ...netip.Addr) bool {
	return slices.Equal(slices.SortedFunc(maps.Keys(m), netip.Addr.Compare), want)
}
