package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// rejecting is IPVS, and a link, that refuse some messages for good.
type rejecting struct {
	ipvsAPI
	linkAPI
	rejects  func(what string) bool
	messages []string // all messages, the refused too
}

func (v *rejecting) do(o op) error {
	v.messages = append(v.messages, o.String())
	if v.rejects(o.String()) {
		return unix.ENOMEM
	}
	return v.ipvsAPI.do(o)
}

func (v *rejecting) addAddr(a netip.Addr) error {
	return v.changeAddr("add address "+a.String(), a, v.linkAPI.addAddr)
}
func (v *rejecting) delAddr(a netip.Addr) error {
	return v.changeAddr("delete address "+a.String(), a, v.linkAPI.delAddr)
}

func (v *rejecting) changeAddr(what string, a netip.Addr, f func(netip.Addr) error) error {
	v.messages = append(v.messages, what)
	if v.rejects(what) {
		return unix.ENOMEM
	}
	return f(a)
}

func (v *rejecting) close() {}

// updateCases change a Service in every way beside another that changes too, and one that comes.
func updateCases(t *testing.T) map[string][2]*plan.Plan {
	lb := func(text string) *plan.Plan {
		if text == "" {
			return parse(t, "")
		}
		return parse(t, "service shop/web\n  port http  203.0.113.5:80/TCP  LoadBalancer  masquerade=from-node balance=random\n"+text)
	}
	one := `    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
`
	two := `    forward 2 endpoints, total 3
      10.244.0.2:9000  weight 1  33.3 %  active
      10.244.0.3:9000  weight 2  66.7 %  active
`
	return map[string][2]*plan.Plan{
		"all members are replaced": {lb(one), lb(two)},
		"it comes":                 {lb(""), lb(two)},
		"it goes":                  {lb(two), lb("")},
		"a local policy":           {lb(two), lb(one + "    outside forward 1 endpoint, total 1\n      10.244.0.2:9000  weight 1  100.0 %  active\n")},
		"nobody is left":           {lb(two), lb("    reject 0 endpoints, total 0\n")},
		"weights":                  {lb(strings.Replace(one, "244.0.1", "244.0.2", 1)), lb(two)},
	}
}

// TestAMessageThatKeepsFailingKeepsOnlyWhatItIsAbout refuses each message of a change for good: no member that has left
// goes on for longer than nobody else takes connections, other frontends are as planned, and all is once it goes.
func TestAMessageThatKeepsFailingKeepsOnlyWhatItIsAbout(t *testing.T) {
	d := newMemEnv(t)
	other := plan.Key{Addr: netip.MustParseAddr("10.96.0.80"), Port: 80, Protocol: model.TCP}
	comes := plan.Key{Addr: netip.MustParseAddr("10.96.0.81"), Port: 80, Protocol: model.TCP}
	key := plan.Key{Addr: netip.MustParseAddr("203.0.113.5"), Port: 80, Protocol: model.TCP}
	for name, pair := range updateCases(t) {
		prev, next := pair[0], pair[1]
		for k, f := range web(t, 1, 1).Frontends {
			prev.Frontends[k] = f
		}
		for k, f := range web(t, -1, 1, 2).Frontends {
			next.Frontends[k] = f
		}
		for k, f := range frontend(t, "10.96.0.81:80/TCP  ClusterIP", "", []int{1}).Frontends {
			next.Frontends[k] = f
		}
		for _, whole := range []bool{false, true} {
			var messages []string
			for n := -1; n < len(messages); n++ {
				b, err := d.open()
				if err != nil {
					t.Fatal(err)
				}
				d.apply(b, prev, nil)
				what := ""
				v := &rejecting{ipvsAPI: d.fakeKernel, linkAPI: d.fakeKernel, rejects: func(m string) bool { return m == what }}
				if n >= 0 {
					what = messages[n]
				}
				b.ipvs, b.links = v, v
				delta := plan.Diff(prev, next)
				if whole {
					delta = nil
				}
				_, err = b.Apply(context.Background(), next, delta)
				where := fmt.Sprintf("%s, whole %v, refused: %s", name, whole, what)
				if n < 0 {
					if messages = v.messages; err != nil || len(messages) == 0 {
						t.Fatalf("%s: %v, %v", where, err, messages)
					}
				} else {
					d.checkRejected(b, v, where, err, what, prev.Frontends[key], next.Frontends[key])
					about := func(k plan.Key) bool { return strings.Contains(what, k.Addr.String()) }
					got, rerr := b.Read(context.Background())
					if rerr != nil {
						t.Fatal(rerr)
					}
					for _, k := range []plan.Key{other, comes} {
						if f := got.Frontends[k]; !about(k) && (f == nil || !f.Equal(next.Frontends[k])) {
							t.Errorf("%s: %s is not as planned: %+v", where, k, f)
						}
					}
				}
				b.ipvs, b.links = d.fakeKernel, d.fakeKernel
				var stuck *backend.PartialError
				if errors.As(err, &stuck) {
					d.apply(b, next, &plan.Delta{})
				} else {
					d.apply(b, next, nil)
				}
				d.settle(b, next)
				d.checkGuards(b, where)
				d.apply(b, prev, nil)
				d.settle(b, prev)
				b.Close()
			}
		}
	}
}

// checkRejected checks a frontend that something was refused for.
func (d *memEnv) checkRejected(b *Backend, v *rejecting, where string, err error, what string, was, shall *plan.Frontend) {
	d.Helper()
	if err == nil || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), what) {
		d.Errorf("%s: error %v", where, err)
	}
	var stuck *backend.PartialError
	if errors.As(err, &stuck) {
		// Others go on, and nothing is tried for them; then it is tried again, and nothing else.
		before := len(v.messages)
		r, err := b.Apply(context.Background(), &plan.Plan{Global: b.state.plan.Global, Frontends: map[plan.Key]*plan.Frontend{}},
			&plan.Delta{Changes: []plan.Change{{Key: plan.Key{Addr: netip.MustParseAddr("10.96.9.9"), Port: 1, Protocol: model.TCP}}}})
		if !errors.As(err, &stuck) || stuck.Retried || len(v.messages) != before {
			d.Errorf("%s: beside it: %+v, %v, %v", where, r, err, v.messages[before:])
		}
	}
	for k, s := range d.virtualServers {
		if s.flags&flagOwned == 0 || k.mark == 0 && k.addr.String() != "203.0.113.5" {
			continue
		}
		serving, left := 0, []string{}
		for _, m := range s.destinations {
			if m.weight == 0 {
				continue
			}
			serving++
			if shall == nil || !hasAddr(shall, plan.Endpoint{Addr: m.addr}) {
				left = append(left, m.addr.String())
			}
		}
		wanted := shall != nil && shall.Pool.Total() > 0
		if len(left) > 0 && !strings.Contains(what, left[0]) && (serving > len(left) || !wanted) {
			d.Errorf("%s: %s: %v have left and take connections; %v", where, k, left, s.destinations)
		}
		if serving == 0 && wanted && was != nil && was.Pool.Total() > 0 && k.mark == 0 {
			d.Errorf("%s: %s has nobody: %v", where, k, s.destinations)
		}
	}
	d.checkGuards(b, where)
}

func TestWhatKeepsTheCompanionFromChangingKeepsNoMemberThatHasLeft(t *testing.T) {
	for name, pair := range updateCases(t) {
		d := newMemEnv(t)
		b, err := d.open()
		if err != nil {
			t.Fatal(err)
		}
		prev, next := pair[0], pair[1]
		d.apply(b, prev, nil)
		real := b.rules
		b.rules = readOnlyRules{real}
		for _, delta := range []*plan.Delta{plan.Diff(prev, next), nil} {
			if _, err := b.Apply(context.Background(), next, delta); !errors.Is(err, unix.EBUSY) {
				t.Errorf("%s: %v", name, err)
			}
			d.checkGuards(b, name)
		}
		for k, s := range d.virtualServers {
			for _, m := range s.destinations {
				f := next.Frontends[plan.Key{Addr: netip.MustParseAddr("203.0.113.5"), Port: 80, Protocol: model.TCP}]
				if m.weight > 0 && (f == nil || !hasAddr(f, plan.Endpoint{Addr: m.addr})) {
					t.Errorf("%s: %s has %v", name, k, m)
				}
			}
		}
		b.rules = real
		d.apply(b, next, nil)
		b.Close()
	}
}

// readOnlyRules reads, and does nothing else.
type readOnlyRules struct{ rulesBackend }

func (readOnlyRules) Apply(context.Context, *plan.Plan, *plan.Delta) (backend.Report, error) {
	return backend.Report{}, unix.EBUSY
}

func (readOnlyRules) Guard(context.Context, []netip.Addr, []netip.Addr) (backend.Report, error) {
	return backend.Report{}, unix.EBUSY
}

func TestOfManyThatAreStuckAFewAreTriedAtATime(t *testing.T) {
	d := newMemEnv(t)
	b, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	refuse := true
	v := &rejecting{ipvsAPI: d.fakeKernel, linkAPI: d.fakeKernel, rejects: func(m string) bool { return refuse && strings.Contains(m, "add address") }}
	b.ipvs, b.links = v, v
	p := cluster(3*retryBatch, 1)
	apply := func(delta *plan.Delta) (int, int) {
		t.Helper()
		before := len(v.messages)
		_, err := b.Apply(context.Background(), p, delta)
		var stuck *backend.PartialError
		if err != nil && !errors.As(err, &stuck) {
			t.Fatal(err)
		}
		if stuck == nil {
			return 0, len(v.messages) - before
		}
		return stuck.Frontends, len(v.messages) - before
	}
	if n, _ := apply(nil); n != 3*retryBatch {
		t.Errorf("%d are stuck", n)
	}
	if n, sent := apply(&plan.Delta{}); n != 3*retryBatch || sent > 2*retryBatch {
		t.Errorf("tried again: %d are stuck, %d messages", n, sent)
	}
	refuse = false
	for want := 2 * retryBatch; want >= 0; want -= retryBatch {
		if n, _ := apply(&plan.Delta{}); n != want {
			t.Errorf("%d are stuck, want %d", n, want)
		}
	}
	d.expectRead(b, p)
}
