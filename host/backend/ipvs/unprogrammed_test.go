package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"golang.org/x/sys/unix"
)

// rejecting wraps IPVS and a link that permanently reject some requests.
type rejecting struct {
	ipvsAPI
	linkAPI
	rejects  func(what string) bool
	messages []string // all requests, including rejected ones
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

// updateCases returns plans before and after, which change one frontend in every way.
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
		"all endpoints replaced": {lb(one), lb(two)},
		"added":                  {lb(""), lb(two)},
		"removed":                {lb(two), lb("")},
		"traffic policy Local":   {lb(two), lb(one + "    outside forward 1 endpoint, total 1\n      10.244.0.2:9000  weight 1  100.0 %  active\n")},
		"no endpoints":           {lb(two), lb("    reject 0 endpoints, total 0\n")},
		"weights":                {lb(strings.Replace(one, "244.0.1", "244.0.2", 1)), lb(two)},
	}
}

// TestARequestThatKeepsFailingAffectsOnlyItsFrontend rejects, in turn, each request of a change: removed destinations
// drain as soon as another one takes connections, other frontends are as planned, and so are all once the request
// succeeds.
func TestARequestThatKeepsFailingAffectsOnlyItsFrontend(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newMemEnv(t)
	other := plan.Key{Addr: netip.MustParseAddr("10.96.0.80"), Port: 80, Protocol: model.TCP}
	added := plan.Key{Addr: netip.MustParseAddr("10.96.0.81"), Port: 80, Protocol: model.TCP}
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
		for _, full := range []bool{false, true} {
			var messages []string
			for n := -1; n < len(messages); n++ {
				b := d.open()
				d.apply(b, prev, nil)
				what := ""
				v := &rejecting{ipvsAPI: d.fakeKernel, linkAPI: d.fakeKernel, rejects: func(m string) bool { return m == what }}
				if n >= 0 {
					what = messages[n]
				}
				b.ipvs, b.links = v, v
				delta := plan.Diff(prev, next)
				if full {
					delta = nil
				}
				_, err := b.Apply(context.Background(), next, delta)
				where := fmt.Sprintf("%s, full %v, rejected: %s", name, full, what)
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
					for _, k := range []plan.Key{other, added} {
						if f := got.Frontends[k]; !about(k) && (f == nil || !f.Equal(next.Frontends[k])) {
							t.Errorf("%s: %s is not as planned: %+v", where, k, f)
						}
					}
				}
				b.ipvs, b.links = d.fakeKernel, d.fakeKernel
				var partial *backend.PartialError
				if errors.As(err, &partial) {
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

// checkRejected checks a frontend of which a request was rejected.
func (d *memEnv) checkRejected(b *Backend, v *rejecting, where string, err error, what string, was, want *plan.Frontend) {
	d.Helper()
	if err == nil || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), what) {
		d.Errorf("%s: error %v", where, err)
	}
	var partial *backend.PartialError
	if errors.As(err, &partial) {
		// A change of another frontend does not retry it.
		before := len(v.messages)
		r, err := b.Apply(context.Background(), &plan.Plan{Global: b.state.plan.Global, Frontends: map[plan.Key]*plan.Frontend{}},
			&plan.Delta{Changes: []plan.Change{{Key: plan.Key{Addr: netip.MustParseAddr("10.96.9.9"), Port: 1, Protocol: model.TCP}}}})
		if !errors.As(err, &partial) || partial.Retried || len(v.messages) != before {
			d.Errorf("%s: a change of another frontend: %+v, %v, %v", where, r, err, v.messages[before:])
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
			if want == nil || !hasAddr(want, plan.Endpoint{Addr: m.addr}) {
				left = append(left, m.addr.String())
			}
		}
		wanted := want != nil && want.Pool.Total() > 0
		if len(left) > 0 && !strings.Contains(what, left[0]) && (serving > len(left) || !wanted) {
			d.Errorf("%s: %s: removed %v still take connections; %v", where, k, left, s.destinations)
		}
		if serving == 0 && wanted && was != nil && was.Pool.Total() > 0 && k.mark == 0 {
			d.Errorf("%s: %s has no destination for new connections: %v", where, k, s.destinations)
		}
	}
	d.checkGuards(b, where)
}

func TestRemovedDestinationsDrainEvenIfRulesCannotBeProgrammed(t *testing.T) {
	for name, pair := range updateCases(t) {
		d := newMemEnv(t)
		b := d.open()
		prev, next := pair[0], pair[1]
		d.apply(b, prev, nil)
		writable := b.rules
		b.rules = readOnlyRules{writable}
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
		b.rules = writable
		d.apply(b, next, nil)
		b.Close()
	}
}

// readOnlyRules can only be read.
type readOnlyRules struct{ rulesBackend }

func (readOnlyRules) Apply(context.Context, *plan.Plan, *plan.Delta) (backend.Report, error) {
	return backend.Report{}, unix.EBUSY
}

func (readOnlyRules) Guard(context.Context, []netip.Addr, []netip.Addr) (backend.Report, error) {
	return backend.Report{}, unix.EBUSY
}

func TestUnprogrammedFrontendsAreRetriedInBatches(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	refuse := true
	v := &rejecting{ipvsAPI: d.fakeKernel, linkAPI: d.fakeKernel, rejects: func(m string) bool { return refuse && strings.Contains(m, "add address") }}
	b.ipvs, b.links = v, v
	p := cluster(3*retryBatch, 1)
	apply := func(delta *plan.Delta) (int, int) {
		t.Helper()
		before := len(v.messages)
		_, err := b.Apply(context.Background(), p, delta)
		var partial *backend.PartialError
		if err != nil && !errors.As(err, &partial) {
			t.Fatal(err)
		}
		if partial == nil {
			return 0, len(v.messages) - before
		}
		return partial.Frontends, len(v.messages) - before
	}
	if n, _ := apply(nil); n != 3*retryBatch {
		t.Errorf("%d unprogrammed", n)
	}
	if n, sent := apply(&plan.Delta{}); n != 3*retryBatch || sent > 2*retryBatch {
		t.Errorf("retry: %d unprogrammed, %d requests", n, sent)
	}
	refuse = false
	for want := 2 * retryBatch; want >= 0; want -= retryBatch {
		if n, _ := apply(&plan.Delta{}); n != want {
			t.Errorf("%d unprogrammed, want %d", n, want)
		}
	}
	d.expectRead(b, p)
}
