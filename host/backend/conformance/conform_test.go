package conformance_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// A kit that nothing can fail checks nothing. Each mutant is a data plane or a backend with one fault of its own, and
// the kit has to find it. Mutants run in a process of their own, because their test has to fail.

const mutantEnv = "SLUICE_CONFORM_MUTANT"

// lab is what a mutant can spoil.
type lab struct {
	kernel *fake.Kernel
	sub    conformance.Subject
	apply  func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error)
	read   func(p *plan.Plan) *plan.Plan
	close  func()
	send   func(c fake.Packet, r fake.Result) fake.Result // what a connection sees
}

type mutant struct {
	*fake.Backend
	lab *lab
}

func (b *mutant) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.lab.apply != nil {
		return b.lab.apply(b.Backend, next, d)
	}
	return b.Backend.Apply(ctx, next, d)
}

func (b *mutant) Read(ctx context.Context) (*plan.Plan, error) {
	p, err := b.Backend.Read(ctx)
	if err == nil && b.lab.read != nil {
		p = b.lab.read(p)
	}
	return p, err
}

func (b *mutant) Close() error {
	if b.lab.close != nil {
		b.lab.close()
	}
	return b.Backend.Close()
}

// wipe empties every frontend of a table.
func wipe(k *fake.Kernel, table string) {
	k.Edit(table, func(p *plan.Plan) { clear(p.Frontends) })
}

// mutants, by name: how to spoil the lab, and which test has to find it.
var mutants = map[string]struct {
	finds string
	spoil func(l *lab)
}{
	"none": {"", func(*lab) {}},
	"an IPv6 frontend is not read": {"what_is_read_is_what_was_applied", func(l *lab) {
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
	"deltas do not delete": {"what_is_read_is_what_was_applied", func(l *lab) {
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
	"everything is sent each time": {"a_second_apply_sends_nothing", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			r.Messages++
			return r, err
		}
	}},
	"it asks for another apply for ever": {"what_is_read_is_what_was_applied", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			r.RequeueAfter = time.Second
			return r, err
		}
	}},
	"close flushes": {"a_restart_keeps_everything", func(l *lab) { l.close = func() { wipe(l.kernel, fake.Name) } }},
	"a pool ends at 1000 members": {"big_pools", func(l *lab) {
		l.read = func(p *plan.Plan) *plan.Plan {
			for k, f := range p.Frontends {
				if len(f.Pool.Members) > 1000 {
					g := *f
					g.Pool.Members = g.Pool.Members[:1000]
					p.Frontends[k] = &g
				}
			}
			return p
		}
	}},
	"a change costs the whole plan": {"a_change_costs_what_it_is", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			if r.Messages > 0 {
				r.Elements += len(next.Frontends)
			}
			return r, err
		}
	}},
	"cleanup forgets": {"cleanup_leaves_nothing", func(l *lab) { l.sub.Cleanup = func(context.Context) error { return nil } }},
	"cleanup leaves an empty table": {"cleanup_leaves_nothing", func(l *lab) {
		l.sub.Cleanup = func(context.Context) error {
			l.kernel.Edit(fake.Name, func(p *plan.Plan) { *p = plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}} })
			return nil
		}
	}},
	"a failure empties a frontend": {"a_failed_message", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, err := b.Apply(context.Background(), next, d)
			if err != nil {
				l.kernel.Edit(fake.Name, func(p *plan.Plan) {
					for k, f := range p.Frontends {
						g := *f
						g.Pool = plan.Pool{Verdict: plan.Drop, Members: nil}
						p.Frontends[k] = &g
					}
				})
			}
			return r, err
		}
	}},
	"after a failure it thinks that all is well": {"a_failed_message", func(l *lab) {
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
	"a failure is hidden": {"a_failed_message", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			r, _ := b.Apply(context.Background(), next, d)
			return r, nil
		}
	}},
	"it flushes what is not its own": {"what_is_not_sluice's", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			wipe(l.kernel, "other")
			return b.Apply(context.Background(), next, d)
		}
	}},
	"it trusts what it sent last": {"drift_is_repaired", func(l *lab) {
		var last string
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			if text := plan.Format(next); text == last {
				return backend.Report{}, nil
			}
			last = plan.Format(next)
			return b.Apply(context.Background(), next, d)
		}
	}},
	"nothing is masqueraded": {"connections_go_where_the_plan_says", func(l *lab) {
		l.send = func(_ fake.Packet, r fake.Result) fake.Result { r.Masqueraded = false; return r }
	}},
	"a drop is a reject": {"connections_go_where_the_plan_says", func(l *lab) {
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if r.Verdict == plan.Drop {
				r.Verdict = plan.Reject
			}
			return r
		}
	}},
	"a connection goes to another Service's endpoint": {"connections_go_where_the_plan_says", func(l *lab) {
		n := 0
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if n++; n%40 == 0 && r.Member.IsValid() {
				r.Member = netip.AddrPortFrom(r.Member.Addr(), r.Member.Port()+1)
			}
			return r
		}
	}},
	"affinity is forgotten": {"connections_go_where_the_plan_says", func(l *lab) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			l.kernel.Edit(fake.Name, func(held *plan.Plan) {
				for k, f := range held.Frontends {
					g := *f
					g.Affinity = 0
					held.Frontends[k] = &g
				}
			})
			return l.kernel.Connect(fake.Packet{From: netip.AddrPortFrom(p.From.Addr(), 0), Interface: p.Interface, To: p.To, Protocol: p.Protocol})
		}
	}},
	"the first member gets a tenth more": {"new_connections_share_out_by_weight", func(l *lab) {
		n := 0
		first := netip.MustParseAddrPort("10.244.1.1:8080")
		l.send = func(_ fake.Packet, r fake.Result) fake.Result {
			if n++; n%10 == 0 && r.Verdict == plan.Forward && !r.Established {
				r.Member = first
			}
			return r
		}
	}},
	"an address that no Service has is left alone": {"traces_and_connections_agree", func(l *lab) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			if r.Verdict == plan.Drop && r.Frontend == (plan.Key{}) {
				r.Ours = false
			}
			return r
		}
	}},
	"NodePorts answer on every address": {"traces_and_connections_agree", func(l *lab) {
		l.send = func(p fake.Packet, r fake.Result) fake.Result {
			if !r.Ours && p.To.Port() >= 30000 {
				r.Ours, r.Verdict = true, plan.Reject
			}
			return r
		}
	}},
	"a change resets connections": {"established_connections_outlive_changes", func(l *lab) {
		l.apply = func(b *fake.Backend, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
			for _, c := range l.kernel.Conns() {
				l.kernel.Disconnect(c.Packet)
			}
			return b.Apply(context.Background(), next, d)
		}
	}},
}

func subject(spoil func(*lab)) conformance.Subject {
	node := []netip.Addr{netip.MustParseAddr("192.168.0.1")}
	l := &lab{kernel: fake.NewKernel(fake.Options{NodeAddrs: node, Seed: 7})}
	k := l.kernel
	port := uint16(1024)
	l.sub = conformance.Subject{
		Open:    func() (backend.Backend, error) { return &mutant{fake.Open(k), l}, nil },
		Cleanup: func(ctx context.Context) error { return fake.Cleanup(ctx, k) },
		Advance: k.Advance,
		Inject: func(n int, lost bool) func() bool {
			return k.Inject(fake.Fault{At: n, Err: errors.New("injected"), Lost: lost})
		},
		Foreign: func() (func() error, error) {
			f := &plan.Frontend{Key: plan.Key{Addr: netip.MustParseAddr("10.96.4.1"), Port: 80, Protocol: model.TCP}}
			k.Edit("other", func(p *plan.Plan) { p.Frontends[f.Key] = f })
			return func() error {
				if p, _ := k.Table("other"); len(p.Frontends) != 1 {
					return errors.New("it is gone")
				}
				return nil
			}, nil
		},
		Drift: func(key plan.Key) error {
			k.Edit(fake.Name, func(p *plan.Plan) { delete(p.Frontends, key) })
			return nil
		},
		Traces: func() ([]string, error) {
			if _, ok := k.Table(fake.Name); ok {
				return []string{"table " + fake.Name}, nil
			}
			return nil, nil
		},
		Wire: &conformance.Wire{
			Global: plan.Global{NodePortAddrs: node, MasqueradeMark: 1,
				PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
			Node: node,
			Clients: []conformance.Client{{Name: "a Pod", From: netip.MustParseAddr("10.244.1.99")},
				{Name: "itself", From: netip.MustParseAddr("10.244.1.1")}, {Name: "outside", From: netip.MustParseAddr("172.16.0.1")}},
			Protocols: []model.Protocol{model.TCP},
			Listen:    func(netip.AddrPort, model.Protocol) (func(), error) { return func() {}, nil },
			Connect: func(c conformance.Client, to netip.AddrPort, proto model.Protocol) (conformance.Seen, error) {
				port++
				p := fake.Packet{From: netip.AddrPortFrom(c.From, port), To: to, Protocol: proto}
				r := k.Connect(p)
				if l.send != nil {
					r = l.send(p, r)
				}
				seen := conformance.Seen{Passed: !r.Ours, Verdict: r.Verdict, Member: r.Member, Source: c.From, Close: func() { k.Disconnect(p) }}
				if r.Masqueraded {
					seen.Source = node[0]
				}
				seen.Again = func() (netip.AddrPort, error) {
					if again := k.Connect(p); again.Established {
						return again.Member, nil
					}
					return netip.AddrPort{}, errors.New("reset")
				}
				return seen, nil
			},
		},
	}
	for _, m := range []string{"10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.3:8080", "10.244.1.4:8080"} {
		l.sub.Wire.Members = append(l.sub.Wire.Members, netip.MustParseAddrPort(m))
	}
	spoil(l)
	return l.sub
}

func TestTheKitFindsEachFault(t *testing.T) {
	if name := os.Getenv(mutantEnv); name != "" {
		conformance.Run(t, func(*testing.T) conformance.Subject { return subject(mutants[name].spoil) })
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
			cmd := exec.CommandContext(ctx, self, "-test.run=^TestTheKitFindsEachFault$", "-test.v")
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if m.finds == "" {
				if err != nil {
					t.Errorf("the kit fails a sound backend: %v\n%s", err, out)
				}
				return
			}
			if err == nil {
				t.Fatalf("the kit did not find it")
			}
			if !strings.Contains(string(out), "--- FAIL: TestTheKitFindsEachFault/"+m.finds) {
				t.Errorf("not found by %s:\n%s", m.finds, out)
			}
		})
	}
}

func TestWhatASubjectLacksIsSaidAndExplained(t *testing.T) {
	for _, name := range []string{"unexplained", "explained"} {
		if os.Getenv(mutantEnv) == name {
			conformance.Run(t, func(*testing.T) conformance.Subject {
				s := subject(func(*lab) {})
				s.Wire = nil
				if name == "explained" {
					s.Without = map[string]string{"Wire": "there is no network here"}
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
		"unexplained": "conform: the Subject has no Wire and does not say why",
		"explained":   "new connections share out by weight: the subject has no Wire: there is no network here",
	} {
		cmd := exec.Command(self, "-test.run=^TestWhatASubjectLacksIsSaidAndExplained$", "-test.v")
		cmd.Env = append(os.Environ(), mutantEnv+"="+name)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (name == "unexplained") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q in:\n%s", name, err, want, out)
		}
	}
}
