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

// memory is IPVS and a link in memory, with the kernel's errors: for kernels that have neither, with a real companion.
// What packets do is for the tests that need IPVS.
type memory struct {
	all map[serverKey]*memoryServer
	placed
	local    map[netip.Addr]bool // the node's by a route
	up       bool
	settings map[string]int // those that are not as wanted; below 0 one that cannot be set
}

type memoryServer struct {
	service
	counted Counters
	members map[netip.AddrPort]memberState
}

func newMemory() *memory {
	set := func() map[netip.Addr]bool { return map[netip.Addr]bool{} }
	return &memory{all: map[serverKey]*memoryServer{}, placed: placed{set(), set(), set()}, local: set(), settings: map[string]int{}}
}

func (m *memory) close() {}

func (m *memory) timeouts(_, _, _ time.Duration) error { return nil }

func (m *memory) servers() (map[serverKey]service, error) {
	out := map[serverKey]service{}
	for k, s := range m.all {
		out[k] = s.service
	}
	return out, nil
}

func (m *memory) traffic() (map[serverKey]counted, error) {
	out := map[serverKey]counted{}
	for k, s := range m.all {
		out[k] = counted{s.service, s.counted}
	}
	return out, nil
}

func (m *memory) server(k serverKey) (service, bool, error) {
	s := m.all[k]
	if s == nil {
		return service{}, false, nil
	}
	return s.service, true, nil
}

func (m *memory) members(k serverKey) ([]memberState, error) {
	if m.all[k] == nil {
		return nil, nil
	}
	return slices.Collect(maps.Values(m.all[k].members)), nil
}

func (m *memory) do(o op) error {
	s := m.all[o.key]
	if o.kind == addServer {
		if s != nil {
			return unix.EEXIST
		}
		m.all[o.key] = &memoryServer{service: o.service, members: map[netip.AddrPort]memberState{}}
		return nil
	}
	if s == nil {
		return unix.ESRCH
	}
	_, there := s.members[o.member.addr]
	switch {
	case o.kind == setServer:
		s.service = o.service
	case o.kind == delServer:
		delete(m.all, o.key)
	case o.kind == addMember && there:
		return unix.EEXIST
	case o.kind != addMember && !there:
		return unix.ENOENT
	case o.kind == delMember:
		delete(s.members, o.member.addr)
	default:
		was := s.members[o.member.addr]
		s.members[o.member.addr] = memberState{member: o.member, active: was.active, inactive: was.inactive}
	}
	return nil
}

func (m *memory) list() (placed, error) {
	return placed{maps.Clone(m.bound), maps.Clone(m.strays), maps.Clone(m.own)}, nil
}

func (m *memory) leave(a netip.Addr) error { delete(m.strays, a); return nil }
func (m *memory) discard() error           { return nil }

func (m *memory) get(name string) (int, error) {
	if v, ok := m.settings[name]; ok {
		return v, nil
	}
	return 1, nil
}

func (m *memory) put(name string, v int) error {
	if m.settings[name] < 0 {
		return unix.EROFS
	}
	m.settings[name] = v
	return nil
}

func (m *memory) where(a netip.Addr) (place, error) {
	if m.own[a] || m.local[a] {
		return onNode, nil
	}
	return away, nil
}

func (m *memory) add(a netip.Addr) error { m.bound[a] = true; return nil }
func (m *memory) del(a netip.Addr) error { delete(m.bound, a); return nil }

func (m *memory) ensure() (made bool, err error) {
	made = !m.up
	m.up = true
	return made, nil
}

// pretend is a node with a real nf_tables and a memory.
type pretend struct {
	*bed
	*memory
}

func newPretend(t testing.TB) *pretend {
	return &pretend{&bed{t, testbed.New(t, 0), time.Unix(1_700_000_000, 0)}, newMemory()}
}

func (d *pretend) open() (*Backend, error) {
	o := d.options()
	o.Link, o.Scheduler, o.DrainTimeout, o.Log = DefaultLink, "wrr", DefaultDrainTimeout, slog.New(slog.DiscardHandler)
	b := newBackend(o, map[string]bool{"wrr": true, "wlc": true, "mh": true})
	b.ipvs, b.links, b.sysctls = d.memory, d.memory, d.memory
	return b, b.openCompanion()
}

func TestConformanceOfAllButThePackets(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		d := newPretend(t)
		var f *faulty
		theirs := byAddr(netip.MustParseAddr("192.0.2.80"), 80, 6)
		return conformance.Subject{
			Open: func() (backend.Backend, error) {
				b, err := d.open()
				if err == nil {
					f = inject(b)
				}
				return b, err
			},
			Cleanup: func(ctx context.Context) error {
				maps.DeleteFunc(d.all, func(_ serverKey, s *memoryServer) bool { return s.flags&flagOurs != 0 })
				clear(d.bound)
				_, err := nftables.Cleanup(ctx, nftables.Options{Netns: d.Lab.Node.Fd()})
				return err
			},
			Advance: func(by time.Duration) { d.t = d.t.Add(by) },
			Inject: func(k int, lost bool) func() bool {
				now := &fault{left: k, lost: lost}
				f.fault = now
				return func() bool { f.fault = nil; return now.fired }
			},
			Foreign: func() (func() error, error) {
				m := memberState{member: member{addr: netip.MustParseAddrPort("10.9.9.9:80"), weight: 7}, foreign: true}
				d.all[theirs] = &memoryServer{service: service{"rr", 0}, members: map[netip.AddrPort]memberState{m.addr: m}}
				before := fmt.Sprint(*d.all[theirs])
				return func() error {
					if now := fmt.Sprint(*d.all[theirs]); now != before {
						return fmt.Errorf("was %s\nis %s", before, now)
					}
					return nil
				}, nil
			},
			Drift: func(k plan.Key) error {
				if k.IsNodePort() {
					table := map[bool]string{false: "ip", true: "ip6"}[k.Addr.Is6()]
					_, err := d.run(fmt.Sprintf("delete element %s sluice nodeports { %s . %d }\n", table, strings.ToLower(k.Protocol.String()), k.Port), "nft", "-f", "-")
					return err
				}
				delete(d.bound, k.Addr)
				return nil
			},
			Without: map[string]string{
				"Wire":   "nothing in memory forwards packets; TestConformance does, in make test-vm",
				"Traces": "the memory is cleaned by the test itself",
			},
		}
	})
}

// TestWhateverIsLeftByAKillHasMembersOfTheOldOrTheNewPlan kills random changes at every message.
func TestWhateverIsLeftByAKillHasMembersOfTheOldOrTheNewPlan(t *testing.T) {
	d := newPretend(t)
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
			f.fault = &fault{left: n, dead: true}
			_, err = b.Apply(context.Background(), next, plan.Diff(prev, next))
			fired := f.fault.fired
			if fired == (err == nil) {
				t.Fatalf("seed %d message %d: fired %v, error %v", seed, n, fired, err)
			}
			b.Close()
			if b, err = d.open(); err != nil {
				t.Fatal(err)
			}
			d.between(b, fmt.Sprintf("seed %d message %d", seed, n), prev, next)
			d.guarded(b, fmt.Sprintf("seed %d message %d", seed, n))
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

// between checks that a frontend of both plans is there, and each member one of either.
func (d *pretend) between(b *Backend, what string, prev, next *plan.Plan) {
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
		for _, m := range is.Pool.Members {
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

// guarded checks that no packet can get lost: what the companion passes on has its address here, and what has it is
// guarded.
func (d *pretend) guarded(b *Backend, what string) {
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
		if !s.linked[a] {
			d.Errorf("%s: other ports of %s are the node's own", what, a)
		}
	}
	for k, v := range s.servers {
		if k.mark == 0 && s.bound[k.addr] && !s.listed[plan.Key{Addr: k.addr, Port: k.port, Protocol: k.proto}] && !s.linked[k.addr] {
			d.Errorf("%s: %s balances (%d members) without the companion", what, k, len(v.members))
		}
	}
}

// hasAddr tells whether one of a frontend's pools has a member's address.
func hasAddr(f *plan.Frontend, m plan.Member) bool {
	same := func(o plan.Member) bool { return o.Addr == m.Addr }
	return slices.ContainsFunc(f.Pool.Members, same) || f.Outside != nil && slices.ContainsFunc(f.Outside.Members, same)
}

func TestWhatTheCompanionGuardsMayBeMoreThanATransactionHolds(t *testing.T) {
	d := newPretend(t)
	b, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const many = 45_000
	b.now.guarded = map[netip.Addr]bool{}
	for _, first := range []string{"10.96.0.0", "fd00:10:96::"} {
		a := netip.MustParseAddr(first)
		for range many {
			a = a.Next()
			b.now.guarded[a] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(b.now.guarded), netip.Addr.Compare)
	check := func(what string, r backend.Report, err error, changed, want int) {
		t.Helper()
		if err != nil || r.Elements != changed || r.Transactions > 1+changed/1000 || changed > many && r.Transactions < 3 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		_, _, guarded, err := b.companion.ReadMarks(context.Background())
		if err != nil || len(guarded) != want {
			t.Errorf("%s: %d addresses are guarded, want %d; %v", what, len(guarded), want, err)
		}
	}
	r, err := b.companion.Guard(context.Background(), all, nil) // into tables that are not there yet
	check("all", r, err, 2*many, 2*many)
	p := web(t, 1)
	r, err = b.companion.Apply(context.Background(), p, nil)
	if err != nil || r.Elements > 20 {
		t.Errorf("a frontend beside them: %+v, %v", r, err)
	}
	for _, a := range all[:many+2] {
		delete(b.now.guarded, a)
	}
	r, err = b.companion.Guard(context.Background(), nil, all[:many+2])
	check("half", r, err, many+2, many-2)
	if r, err = b.companion.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
		t.Errorf("nothing is left to do: %+v, %v", r, err)
	}
}
