package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Each mutant is a data plane or a backend with one defect that the tests must find. Mutants run in a separate process,
// because their test has to fail.

const mutantEnv = "SLUICE_CONFORM_MUTANT"

// testbed is what a mutant can alter.
type testbed struct {
	kernel *fake.Kernel
	sub    conformance.Fixture
	apply  func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error)
	read   func(p *plan.Plan) *plan.Plan
	close  func()
	send   func(c fake.Packet, r fake.Result) fake.Result // what a connection sees
	count  func(m outcomes)
}

type outcomes = map[model.EndpointKey]backend.OutcomeCounters

type mutant struct {
	*fake.Backend
	bed *testbed
}

func (b *mutant) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.bed.apply != nil {
		return b.bed.apply(b.Backend, next, d)
	}
	return b.Backend.Apply(ctx, next, d)
}

func (b *mutant) Read(ctx context.Context) (*plan.Plan, error) {
	p, err := b.Backend.Read(ctx)
	if err == nil && b.bed.read != nil {
		p = b.bed.read(p)
	}
	return p, err
}

func (b *mutant) ReadOutcomes(ctx context.Context) (outcomes, error) {
	m, err := b.Backend.ReadOutcomes(ctx)
	if err == nil && b.bed.count != nil {
		b.bed.count(m)
	}
	return m, err
}

func (b *mutant) Close() error {
	if b.bed.close != nil {
		b.bed.close()
	}
	return b.Backend.Close()
}

// wipe empties every frontend of a table.
func wipe(k *fake.Kernel, table string) {
	k.Edit(table, func(p *plan.Plan) { clear(p.Frontends) })
}

// mutants, by name: the test that must find it, and the defect.
var mutants = map[string]struct {
	foundBy string
	mutate  func(l *testbed)
}{
	"none": {"", func(*testbed) {}},
	"an IPv6 frontend is not read": {"read_returns_the_applied_plan", func(l *testbed) {
		l.read = func(p *plan.Plan) *plan.Plan {
			for k := range p.Frontends {
				if k.Family() == model.IPv6 {
					delete(p.Frontends, k)
					break
				}
			}
			return p
		}
	}},
	"deltas do not delete": {"read_returns_the_applied_plan", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			if d != nil {
				kept := &plan.Delta{Global: d.Global}
				for _, c := range d.Changes {
					if c.New != nil {
						kept.Changes = append(kept.Changes, c)
					}
				}
				d = kept
			}
			return b.Apply(context.Background(), next, d)
		}
	}},
	"every apply rewrites everything": {"a_second_apply_writes_nothing", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			r.Messages++
			return r, err
		}
	}},
	"apply is requeued forever": {"read_returns_the_applied_plan", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			r.RequeueAfter = time.Second
			return r, err
		}
	}},
	"close flushes": {"a_restart_keeps_all_state", func(l *testbed) { l.close = func() { wipe(l.kernel, fake.Name) } }},
	"a pool is cut at 1000 endpoints": {"large_pools", func(l *testbed) {
		l.read = func(p *plan.Plan) *plan.Plan {
			for k, f := range p.Frontends {
				if len(f.Pool.Endpoints) > 1000 {
					g := *f
					g.Pool.Endpoints = g.Pool.Endpoints[:1000]
					p.Frontends[k] = &g
				}
			}
			return p
		}
	}},
	"a change writes the whole plan": {"update_cost_depends", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			if r.Messages > 0 {
				r.Elements += len(next.Frontends)
			}
			return r, err
		}
	}},
	"cleanup does nothing": {"cleanup_removes_all_state", func(l *testbed) { l.sub.Cleanup = func(context.Context) error { return nil } }},
	"cleanup leaves an empty table": {"cleanup_removes_all_state", func(l *testbed) {
		l.sub.Cleanup = func(context.Context) error {
			l.kernel.Edit(fake.Name, func(p *plan.Plan) { *p = plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}} })
			return nil
		}
	}},
	"a failure empties a frontend": {"a_failed_message", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			if err != nil {
				l.kernel.Edit(fake.Name, func(p *plan.Plan) {
					for k, f := range p.Frontends {
						g := *f
						g.Pool = plan.Pool{Verdict: plan.Drop, Endpoints: nil}
						p.Frontends[k] = &g
					}
				})
			}
			return r, err
		}
	}},
	"a failure is not repaired": {"a_failed_message", func(l *testbed) {
		failed := false
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			if failed {
				failed = false
				return backend.Report{}, nil
			}
			r, err := b.Apply(context.Background(), next, d)
			failed = err != nil
			return r, err
		}
	}},
	"a failure is hidden": {"a_failed_message", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, _ := b.Apply(context.Background(), next, d)
			return r, nil
		}
	}},
	"foreign state is flushed": {"foreign_state", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			wipe(l.kernel, "other")
			return b.Apply(context.Background(), next, d)
		}
	}},
	"the cache is trusted": {"drift_is_repaired", func(l *testbed) {
		var last string
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			if text := plan.Format(next); text == last {
				return backend.Report{}, nil
			}
			last = plan.Format(next)
			return b.Apply(context.Background(), next, d)
		}
	}},
	"nothing is masqueraded": {"connections_follow_the_plan", func(l *testbed) {
		l.send = func(_ fake.Packet, r fake.Result) fake.Result { r.Masqueraded = false; return r }
	}},
	"a drop is a reject": {"connections_follow_the_plan", func(l *testbed) {
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if r.Verdict == plan.Drop {
				r.Verdict = plan.Reject
			}
			return r
		}
	}},
	"a connection goes to another Service's endpoint": {"connections_follow_the_plan", func(l *testbed) {
		n := 0
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if n++; n%40 == 0 && r.Endpoint.IsValid() {
				r.Endpoint = netip.AddrPortFrom(r.Endpoint.Addr(), r.Endpoint.Port()+1)
			}
			return r
		}
	}},
	"affinity is lost": {"connections_follow_the_plan", func(l *testbed) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			l.kernel.Edit(fake.Name, func(programmed *plan.Plan) {
				for k, f := range programmed.Frontends {
					g := *f
					g.Affinity = 0
					programmed.Frontends[k] = &g
				}
			})
			return l.kernel.Connect(fake.Packet{From: netip.AddrPortFrom(p.From.Addr(), 0), Interface: p.Interface, To: p.To, Protocol: p.Protocol})
		}
	}},
	"the first endpoint gets a tenth more": {"new_connections_are_distributed", func(l *testbed) {
		n := 0
		first := netip.MustParseAddrPort("10.244.1.1:8080")
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if n++; n%10 == 0 && r.Verdict == plan.Forward && !r.Established {
				r.Endpoint = first
			}
			return r
		}
	}},
	"an unused Service address is not dropped": {"connections_match_their_traces", func(l *testbed) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			if r.Verdict == plan.Drop && r.Frontend == (plan.Key{}) {
				r.Ours = false
			}
			return r
		}
	}},
	"NodePorts answer on every address": {"connections_match_their_traces", func(l *testbed) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			if !r.Ours && p.To.Port() >= 30000 {
				r.Ours, r.Verdict = true, plan.Reject
			}
			return r
		}
	}},
	"an endpoint has no counters": {"the_endpoints_of_frontends_with_outcomes", func(l *testbed) {
		l.count = func(m outcomes) {
			for e := range m {
				delete(m, e)
				return
			}
		}
	}},
	"counters of a former endpoint stay": {"the_endpoints_of_frontends_with_outcomes", func(l *testbed) {
		all := outcomes{}
		l.count = func(m outcomes) {
			maps.Copy(all, m)
			maps.Copy(m, all)
		}
	}},
	"an answer in ten is not counted": {"outcomes_of_connections", func(l *testbed) {
		l.count = func(m outcomes) {
			for e, c := range m {
				c.Answered -= c.Answered / 10
				m[e] = c
			}
		}
	}},
	"a change resets connections": {"established_connections_survive", func(l *testbed) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			for _, c := range l.kernel.Conns() {
				l.kernel.Disconnect(c.Packet)
			}
			return b.Apply(context.Background(), next, d)
		}
	}},
}

func newFixture(mutate func(*testbed)) conformance.Fixture {
	node := []netip.Addr{netip.MustParseAddr("192.168.0.1")}
	l := &testbed{kernel: fake.NewKernel(fake.Options{NodeAddrs: node, Seed: 7})}
	k := l.kernel
	port := uint16(1024)
	l.sub = conformance.Fixture{
		Open:    func() (backend.Backend, error) { return &mutant{fake.Open(k), l}, nil },
		Cleanup: func(ctx context.Context) error { return fake.Cleanup(ctx, k) },
		Advance: k.Advance,
		InjectFault: func(n int, lost bool) func() bool {
			return k.Inject(fake.Fault{At: n, Err: errors.New("injected"), Lost: lost})
		},
		Reject: func(key plan.Key) func() {
			k.Reject(key, errors.New("injected"))
			return func() { k.Reject(key, nil) }
		},
		AddForeign: func() (func() error, error) {
			f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("10.96.4.1"), Port: 80, Protocol: model.TCP}}
			k.Edit("other", func(p *plan.Plan) { p.Frontends[f.Key] = f })
			return func() error {
				if p, _ := k.Table("other"); len(p.Frontends) != 1 {
					return errors.New("it is gone")
				}
				return nil
			}, nil
		},
		Corrupt: func(key plan.Key) error {
			k.Edit(fake.Name, func(p *plan.Plan) { delete(p.Frontends, key) })
			return nil
		},
		Leftovers: func() ([]string, error) {
			if _, ok := k.Table(fake.Name); ok {
				return []string{"table " + fake.Name}, nil
			}
			return nil, nil
		},
		Traffic: &conformance.Traffic{
			Global: plan.Global{NodePortAddrs: node, MasqueradeMark: 1,
				PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
			Node: node,
			Clients: []conformance.Client{{Name: "a Pod", From: netip.MustParseAddr("10.244.1.99")},
				{Name: "itself", From: netip.MustParseAddr("10.244.1.1")}, {Name: "outside", From: netip.MustParseAddr("172.16.0.1")}},
			Protocols: []model.Protocol{model.TCP},
			Listen:    func(netip.AddrPort, model.Protocol) (func(), error) { return func() {}, nil },
			Connect: func(c conformance.Client, to netip.AddrPort, proto model.Protocol) (conformance.Outcome, error) {
				port++
				p := fake.Packet{From: netip.AddrPortFrom(c.From, port), To: to, Protocol: proto}
				r := k.Connect(p)
				if l.send != nil {
					r = l.send(p, r)
				}
				seen := conformance.Outcome{NotProxied: !r.Ours, Verdict: r.Verdict, Server: r.Endpoint, Source: c.From, Close: func() { k.Disconnect(p) }}
				if r.Masqueraded {
					seen.Source = node[0]
				}
				seen.Reuse = func() (netip.AddrPort, error) {
					if again := k.Connect(p); again.Established {
						return again.Endpoint, nil
					}
					return netip.AddrPort{}, errors.New("reset")
				}
				return seen, nil
			},
		},
	}
	for _, m := range []string{"10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.3:8080", "10.244.1.4:8080"} {
		l.sub.Traffic.Servers = append(l.sub.Traffic.Servers, netip.MustParseAddrPort(m))
	}
	mutate(l)
	return l.sub
}

func TestEveryMutantIsDetected(t *testing.T) {
	if name := os.Getenv(mutantEnv); name != "" {
		conformance.Run(t, func(*testing.T) conformance.Fixture { return newFixture(mutants[name].mutate) })
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range mutants {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			// Only the part that has to find it; a correct backend passes all.
			cmd := exec.CommandContext(ctx, self, "-test.run=^TestEveryMutantIsDetected$/"+m.foundBy, "-test.v", fmt.Sprintf("-test.short=%t", testing.Short() && m.foundBy == ""))
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if m.foundBy == "" {
				if err != nil {
					t.Errorf("a correct backend fails: %v\n%s", err, out)
				}
				return
			}
			if err == nil {
				t.Fatalf("not detected")
			}
			if !strings.Contains(string(out), "--- FAIL: TestEveryMutantIsDetected/"+m.foundBy) {
				t.Errorf("not detected by %s:\n%s", m.foundBy, out)
			}
		})
	}
}

func TestUnsupportedFieldsNeedAReason(t *testing.T) {
	for _, name := range []string{"unexplained", "explained"} {
		if os.Getenv(mutantEnv) == name {
			conformance.Run(t, func(*testing.T) conformance.Fixture {
				s := newFixture(func(*testbed) {})
				s.Traffic = nil
				if name == "explained" {
					s.Unsupported = map[string]string{"Traffic": "there is no network here"}
				}
				return s
			})
			return
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"unexplained": "conformance: the Fixture has no Traffic and no reason in Unsupported",
		"explained":   "new connections are distributed by weight: the fixture has no Traffic: there is no network here",
	} {
		cmd := exec.Command(self, "-test.run=^TestUnsupportedFieldsNeedAReason$", "-test.v", fmt.Sprintf("-test.short=%t", testing.Short()))
		cmd.Env = append(os.Environ(), mutantEnv+"="+name)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (name == "unexplained") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q in:\n%s", name, err, want, out)
		}
	}
}
