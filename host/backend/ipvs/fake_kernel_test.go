package ipvs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/lab/plangen"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// fakeKernel is IPVS and a link in memory, with the kernel's errors: for kernels that have neither, with a real companion.
// What packets do is for the tests that need IPVS.
type fakeKernel struct {
	virtualServers map[serverKey]*fakeServer
	nodeAddrs
	localRoutes map[netip.Addr]bool // the node's by a route
	linkUp      bool
	sysctls     map[string]int // those that are not as wanted; below 0 one that cannot be set
}

type fakeServer struct {
	serverConfig
	counters     Counters
	destinations map[netip.AddrPort]destinationState
}

func newFakeKernel() *fakeKernel {
	set := func() map[netip.Addr]bool { return map[netip.Addr]bool{} }
	return &fakeKernel{virtualServers: map[serverKey]*fakeServer{}, nodeAddrs: nodeAddrs{set(), set(), set()}, localRoutes: set(), sysctls: map[string]int{}}
}

func (m *fakeKernel) close() {}

func (m *fakeKernel) setTimeouts(_, _, _ time.Duration) error { return nil }

func (m *fakeKernel) listServers() (map[serverKey]serverConfig, error) {
	out := map[serverKey]serverConfig{}
	for k, s := range m.virtualServers {
		out[k] = s.serverConfig
	}
	return out, nil
}

func (m *fakeKernel) listCounters() (map[serverKey]serverCounters, error) {
	out := map[serverKey]serverCounters{}
	for k, s := range m.virtualServers {
		out[k] = serverCounters{s.serverConfig, s.counters}
	}
	return out, nil
}

func (m *fakeKernel) getServer(k serverKey) (serverConfig, bool, error) {
	s := m.virtualServers[k]
	if s == nil {
		return serverConfig{}, false, nil
	}
	return s.serverConfig, true, nil
}

func (m *fakeKernel) listDestinations(k serverKey) ([]destinationState, error) {
	if m.virtualServers[k] == nil {
		return nil, nil
	}
	return slices.Collect(maps.Values(m.virtualServers[k].destinations)), nil
}

func (m *fakeKernel) do(o op) error {
	s := m.virtualServers[o.key]
	if o.kind == opAddServer {
		if s != nil {
			return unix.EEXIST
		}
		m.virtualServers[o.key] = &fakeServer{serverConfig: o.serverConfig, destinations: map[netip.AddrPort]destinationState{}}
		return nil
	}
	if s == nil {
		return unix.ESRCH
	}
	_, there := s.destinations[o.destination.addr]
	switch {
	case o.kind == opSetServer:
		s.serverConfig = o.serverConfig
	case o.kind == opDelServer:
		delete(m.virtualServers, o.key)
	case o.kind == opAddDestination && there:
		return unix.EEXIST
	case o.kind != opAddDestination && !there:
		return unix.ENOENT
	case o.kind == opDelDestination:
		delete(s.destinations, o.destination.addr)
	default:
		was := s.destinations[o.destination.addr]
		s.destinations[o.destination.addr] = destinationState{destination: o.destination, active: was.active, inactive: was.inactive}
	}
	return nil
}

func (m *fakeKernel) listAddrs() (nodeAddrs, error) {
	return nodeAddrs{maps.Clone(m.bound), maps.Clone(m.otherLinks), maps.Clone(m.nodeLocal)}, nil
}

func (m *fakeKernel) delFromOtherLinks(a netip.Addr) error { delete(m.otherLinks, a); return nil }
func (m *fakeKernel) deleteUnusedDefault() error           { return nil }

func (m *fakeKernel) getSysctl(name string) (int, error) {
	if v, ok := m.sysctls[name]; ok {
		return v, nil
	}
	return 1, nil
}

func (m *fakeKernel) setSysctl(name string, v int) error {
	if m.sysctls[name] < 0 {
		return unix.EROFS
	}
	m.sysctls[name] = v
	return nil
}

func (m *fakeKernel) locate(a netip.Addr) (addrLocation, error) {
	if m.nodeLocal[a] || m.localRoutes[a] {
		return onNode, nil
	}
	return notOnNode, nil
}

func (m *fakeKernel) addAddr(a netip.Addr) error { m.bound[a] = true; return nil }
func (m *fakeKernel) delAddr(a netip.Addr) error { delete(m.bound, a); return nil }

func (m *fakeKernel) ensureLink() (made bool, err error) {
	made = !m.linkUp
	m.linkUp = true
	return made, nil
}

// memEnv is a node with a real nf_tables and a memory.
type memEnv struct {
	*env
	*fakeKernel
}

func newMemEnv(t testing.TB) *memEnv {
	return &memEnv{&env{t, testbed.New(t, 0), time.Unix(1_700_000_000, 0)}, newFakeKernel()}
}

func (d *memEnv) open() (*Backend, error) {
	o := d.options()
	o.Link, o.Scheduler, o.DrainTimeout, o.Log = DefaultLink, "wrr", DefaultDrainTimeout, slog.New(slog.DiscardHandler)
	b := newBackend(o, map[string]bool{"wrr": true, "wlc": true, "mh": true})
	b.ipvs, b.links, b.sysctls = d.fakeKernel, d.fakeKernel, d.fakeKernel
	return b, b.openRules(nil)
}

func TestConformanceOfAllButThePackets(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		d := newMemEnv(t)
		var f *faultInjector
		theirs := addrKey(netip.MustParseAddr("192.0.2.80"), 80, 6)
		return conformance.Fixture{
			Open: func() (backend.Backend, error) {
				b, err := d.open()
				if err == nil {
					f = inject(b)
				}
				return b, err
			},
			Cleanup: func(ctx context.Context) error {
				maps.DeleteFunc(d.virtualServers, func(_ serverKey, s *fakeServer) bool { return s.flags&flagOwned != 0 })
				clear(d.bound)
				_, err := nftables.Cleanup(ctx, d.Lab.Node.Fd())
				return err
			},
			Advance: func(by time.Duration) { d.now = d.now.Add(by) },
			InjectFault: func(k int, lost bool) func() bool {
				now := &fault{after: k, lost: lost}
				f.fault = now
				return func() bool { f.fault = nil; return now.fired }
			},
			AddForeign: func() (func() error, error) {
				m := destinationState{destination: destination{addr: netip.MustParseAddrPort("10.9.9.9:80"), weight: 7, modified: true}}
				d.virtualServers[theirs] = &fakeServer{serverConfig: serverConfig{"rr", 0}, destinations: map[netip.AddrPort]destinationState{m.addr: m}}
				before := fmt.Sprint(*d.virtualServers[theirs])
				return func() error {
					if now := fmt.Sprint(*d.virtualServers[theirs]); now != before {
						return fmt.Errorf("was %s\nis %s", before, now)
					}
					return nil
				}, nil
			},
			Corrupt: func(k plan.Key) error {
				if k.IsNodePort() {
					table := map[bool]string{false: "ip", true: "ip6"}[k.Addr.Is6()]
					_, err := d.run(fmt.Sprintf("delete element %s sluice nodeports { %s . %d }\n", table, strings.ToLower(k.Protocol.String()), k.Port), "nft", "-f", "-")
					return err
				}
				delete(d.bound, k.Addr)
				return nil
			},
			Unsupported: map[string]string{
				"Traffic":   "nothing in memory forwards packets; TestConformance does, in make test-vm",
				"Leftovers": "the memory is cleaned by the test itself",
			},
		}
	})
}

// TestWhateverIsLeftByAKillHasMembersOfTheOldOrTheNewPlan kills random changes at every message.
func TestWhateverIsLeftByAKillHasMembersOfTheOldOrTheNewPlan(t *testing.T) {
	d := newMemEnv(t)
	kills := 0
	seeds := uint64(5)
	if testing.Short() || os.Getenv("SLUICE_VM") != "" {
		seeds = 2
	}
	for seed := range seeds {
		g := plangen.New(seed, plangen.Options{Ports: 4, Members: 4})
		prev := g.Plan()
		next := g.Next(g.Next(g.Next(prev)))
		for n := 1; ; n += 1 + rand.IntN(3) {
			b, err := d.open()
			if err != nil {
				t.Fatal(err)
			}
			d.apply(b, prev, nil)
			f := inject(b)
			f.fault = &fault{after: n, dead: true}
			_, err = b.Apply(context.Background(), next, plan.Diff(prev, next))
			fired := f.fault.fired
			if fired == (err == nil) {
				t.Fatalf("seed %d message %d: fired %v, error %v", seed, n, fired, err)
			}
			b.Close()
			if b, err = d.open(); err != nil {
				t.Fatal(err)
			}
			d.checkBetween(b, fmt.Sprintf("seed %d message %d", seed, n), prev, next)
			d.checkGuards(b, fmt.Sprintf("seed %d message %d", seed, n))
			d.apply(b, next, nil)
			d.apply(b, prev, nil)
			b.Close()
			if !fired {
				break
			}
			kills++
		}
	}
	t.Logf("%d kills", kills)
}

// checkBetween checks that a frontend of both plans is there, and each member one of either.
func (d *memEnv) checkBetween(b *Backend, what string, prev, next *plan.Plan) {
	d.Helper()
	prev, _ = plan.Normalize(prev, b.Caps())
	next, _ = plan.Normalize(next, b.Caps())
	got, err := b.Read(context.Background())
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	for k, was := range prev.Frontends {
		is, shall := got.Frontends[k], next.Frontends[k]
		if shall == nil || is == nil {
			if shall != nil {
				d.Errorf("%s: %s is gone", what, k)
			}
			continue
		}
		forwards := was.Pool.Verdict == plan.Forward && shall.Pool.Verdict == plan.Forward
		if forwards && is.Pool.Total() == 0 {
			d.Errorf("%s: %s has no member with weight", what, k)
		}
		for _, m := range is.Pool.Endpoints {
			if !hasAddr(was, m) && !hasAddr(shall, m) {
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

// checkGuards checks that no packet can get lost: what the companion passes on has its address here, and what has it is
// guarded.
func (d *memEnv) checkGuards(b *Backend, what string) {
	d.Helper()
	s, err := b.load(context.Background())
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	for k := range s.plan.Frontends {
		if !k.IsNodePort() && !s.bound[k.Addr] {
			d.Errorf("%s: packets to %s pass the companion and go out by the default route", what, k)
		}
	}
	for a := range s.bound {
		if !s.guardsRead[a] {
			d.Errorf("%s: other ports of %s are the node's own", what, a)
		}
	}
	for k, v := range s.servers {
		if k.mark == 0 && s.bound[k.addr] && !s.listed[plan.Key{Addr: k.addr, Port: k.port, Protocol: k.proto}] && !s.guardsRead[k.addr] {
			d.Errorf("%s: %s balances (%d members) without the companion", what, k, len(v.destinations))
		}
	}
}

// hasAddr tells whether one of a frontend's pools has a member's address.
func hasAddr(f *plan.Frontend, m plan.Endpoint) bool {
	same := func(o plan.Endpoint) bool { return o.Addr == m.Addr }
	return slices.ContainsFunc(f.Pool.Endpoints, same) || f.Outside != nil && slices.ContainsFunc(f.Outside.Endpoints, same)
}

func TestWhatTheCompanionGuardsMayBeMoreThanATransactionHolds(t *testing.T) {
	d := newMemEnv(t)
	b, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
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
	r, err := b.rules.Guard(context.Background(), all, nil) // into tables that are not there yet
	check("all", r, err, 2*many, 2*many)
	p := web(t, 1)
	r, err = b.rules.Apply(context.Background(), p, nil)
	if err != nil || r.Elements > 20 {
		t.Errorf("a frontend beside them: %+v, %v", r, err)
	}
	for _, a := range all[:many+2] {
		delete(b.state.guarded, a)
	}
	r, err = b.rules.Guard(context.Background(), nil, all[:many+2])
	check("half", r, err, many+2, many-2)
	if r, err = b.rules.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
		t.Errorf("nothing is left to do: %+v, %v", r, err)
	}
}
