package engine_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/engine"
)

// clientPort returns a packet from a port of a client.
func clientPort(port uint16, proto model.Protocol) fake.Packet {
	return fake.Packet{From: netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), port), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: proto}
}

// silentPort makes endpoint 10.244.0.1 silent, and returns a packet that has met it.
func (r *rig) silentPort(proto model.Protocol) fake.Packet {
	r.t.Helper()
	at := netip.MustParseAddrPort("10.244.0.1:8080")
	r.kernel.SetResponse(model.EndpointKey{Addr: at, Protocol: proto}, fake.Silent)
	for port := range uint16(200) {
		p := clientPort(20_000+port, proto)
		if c := r.kernel.Connect(p); c.Endpoint == at {
			return p
		}
	}
	r.t.Fatal("no connection met the silent endpoint")
	return fake.Packet{}
}

// meets reports whether the next packet from a client's port meets endpoint 10.244.0.n.
func (r *rig) meets(p fake.Packet, n byte) bool {
	return r.kernel.Connect(p).Endpoint.Addr().As4()[3] == n
}

func udpService() (service model.Change, slice func(...int) model.Change) {
	service = svc()
	service.Service.Ports[0].Protocol = model.UDP
	return service, func(last ...int) model.Change {
		c := eps(last...)
		c.Slice.Ports[0].Protocol = model.UDP
		return c
	}
}

func TestConnectionsWithoutAnAnswerLeaveAnEndpointThatGetsNoNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		established := 0
		for port := range uint16(40) {
			if r.kernel.Connect(clientPort(1000+port, model.TCP)).Endpoint.Addr().As4()[3] == 1 {
				established++
			}
		}
		silent := r.silentPort(model.TCP)
		r.emit(eps(2))
		r.advance(200 * time.Millisecond)
		if !r.meets(silent, 1) {
			t.Fatal("a handshake has less than 200 ms for an answer")
		}
		r.advance(100 * time.Millisecond)
		if !r.meets(silent, 2) {
			t.Fatalf("a port that met a silent endpoint meets it again\n%s", r.log)
		}
		left := 0
		for _, c := range r.kernel.Conns() {
			if c.Endpoint.Addr().As4()[3] == 1 {
				left++
			}
		}
		if left != established || established == 0 {
			t.Errorf("%d of %d established connections are left", left, established)
		}
		if n := strings.Count(r.log.String(), "deleted connections without an answer"); n != 1 {
			t.Errorf("%d deletions are logged\n%s", n, r.log)
		}
	})
}

func TestFlowsOfUDPHaveFiveSecondsForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, slice := udpService()
		r := start(t, fake.Options{}, nil)
		r.emit(service, slice(1, 2), synced)
		silent := r.silentPort(model.UDP)
		r.emit(slice(-1, 2)) // it serves and terminates: rule 38 keeps its flows
		r.advance(4900 * time.Millisecond)
		if !r.meets(silent, 1) {
			t.Fatal("a flow has less than 4.9 s for an answer")
		}
		r.advance(200 * time.Millisecond)
		if !r.meets(silent, 2) {
			t.Fatalf("a flow without an answer stays\n%s", r.log)
		}
	})
}

func TestEndpointThatReturnsKeepsItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		silent := r.silentPort(model.TCP)
		r.emit(eps(2))
		r.advance(100 * time.Millisecond)
		r.emit(eps(1, 2))
		r.advance(time.Minute)
		if !r.meets(silent, 1) {
			t.Error("the entry is deleted although the endpoint gets new connections")
		}
	})
}

// flakyTable fails to delete connections without an answer, as long as it shall.
type flakyTable struct {
	*fake.Kernel
	fails atomic.Bool
	calls atomic.Int64
	most  atomic.Int64 // endpoints of a call
}

func (f *flakyTable) DeleteUnreplied(ctx context.Context, to []plan.Reset) (int, error) {
	f.calls.Add(1)
	f.most.Store(max(f.most.Load(), int64(len(to))))
	if f.fails.Load() {
		return 0, errors.New("no memory")
	}
	return f.Kernel.DeleteUnreplied(ctx, to)
}

// slowTable takes a time for each deletion, or, without one, until it is cancelled.
type slowTable struct {
	*fake.Kernel
	takes   time.Duration
	calls   atomic.Int64
	longest atomic.Int64 // time.Duration
}

func (s *slowTable) DeleteUnreplied(ctx context.Context, _ []plan.Reset) (int, error) {
	s.calls.Add(1)
	begin := time.Now()
	if s.takes > 0 {
		time.Sleep(s.takes)
	} else {
		<-ctx.Done()
	}
	s.longest.Store(max(s.longest.Load(), int64(time.Since(begin))))
	return 0, ctx.Err()
}

// TestDeletionsTakeABoundedTime: a twentieth of a processor, and 5 s at a time.
func TestDeletionsTakeABoundedTime(t *testing.T) {
	for name, c := range map[string]struct {
		takes, longest time.Duration
		most           int64 // deletions in 20 s of changes
	}{
		"slow":  {100 * time.Millisecond, 100 * time.Millisecond, 11},
		"stuck": {0, 5 * time.Second, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				table := &slowTable{Kernel: r.kernel, takes: c.takes}
				r.connTable = table
				r.run(fake.Open(r.kernel), nil, false)
				t.Cleanup(r.end)
				r.emit(svc(), eps(1, 2), synced)
				for i := range 400 {
					r.emit(eps(1, 2+i%200))
					r.advance(50 * time.Millisecond)
				}
				r.advance(10 * time.Second)
				if n := table.calls.Load(); n < 1 || n > c.most {
					t.Errorf("%d deletions, want 1 to %d", n, c.most)
				}
				if longest := time.Duration(table.longest.Load()); longest != c.longest {
					t.Errorf("the longest took %v, want %v", longest, c.longest)
				}
			})
		})
	}
}

// TestFruitlessListingsAreSeldom: changes go on and on. Where connections without an answer are found, the table is listed again
// soon.
func TestFruitlessListingsAreSeldom(t *testing.T) {
	for _, found := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
			table := &countingTable{Kernel: r.kernel, found: found}
			r.connTable = table
			r.run(fake.Open(r.kernel), nil, false)
			t.Cleanup(r.end)
			r.emit(svc(), eps(1, 2), synced)
			least, most := int64(5), int64(5) // in a minute: after 0.3, 4, 12, 28 and 44 s
			if found > 0 {
				least, most = 120, 240
			}
			for i := range 1200 {
				r.emit(eps(1, 2+i%200))
				r.advance(50 * time.Millisecond)
			}
			if n := table.calls.Load(); n < least || n > most {
				t.Errorf("%d listings that find %d, want %d to %d", n, found, least, most)
			}
			r.advance(time.Minute)
			before := table.calls.Load()
			for i := range 100 {
				r.emit(eps(1, 2+i))
				r.advance(50 * time.Millisecond)
			}
			if n := table.calls.Load() - before; n < 2 || found == 0 && n > 2 {
				t.Errorf("%d listings in 5 s after a minute without changes, want one soon, and one more", n)
			}
		})
	}
}

// countingTable finds as many connections at each listing.
type countingTable struct {
	*fake.Kernel
	found int
	calls atomic.Int64
}

func (c *countingTable) DeleteUnreplied(context.Context, []plan.Reset) (int, error) {
	c.calls.Add(1)
	return c.found, nil
}

func TestDeletionThatFailsIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		table := &flakyTable{Kernel: r.kernel}
		table.fails.Store(true)
		r.connTable = table
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1, 2), synced)
		silent := r.silentPort(model.TCP)
		r.emit(eps(2))
		r.advance(time.Minute)
		if n := table.calls.Load(); n < 4 || n > 8 || !strings.Contains(r.log.String(), "no memory") {
			t.Errorf("%d calls in a minute\n%s", n, r.log)
		}
		table.fails.Store(false)
		r.advance(11 * time.Second)
		if !r.meets(silent, 2) {
			t.Error("the deletion is not repeated")
		}
	})
}

// TestNothingIsDeletedBeforeTheNewRules: what is balanced again must not meet the old ones.
func TestNothingIsDeletedBeforeTheNewRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1, 2), synced)
		silent := r.silentPort(model.TCP)
		r.kernel.Reject(key, errors.New("no"))
		for range 100 {
			r.kernel.Inject(fake.Fault{At: 1, Err: errors.New("busy")})
			r.emit(eps(2))
			r.advance(10 * time.Millisecond)
		}
		if !r.meets(silent, 1) {
			t.Fatal("the entry is deleted, and nothing is programmed")
		}
		r.kernel.Reject(key, nil)
		r.advance(time.Minute)
		if !r.meets(silent, 2) {
			t.Errorf("the entry is not deleted once it is\n%s", r.log)
		}
	})
}

// TestDeletionsAreBounded: at most 10,000 endpoints of frontends are remembered.
func TestDeletionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		table := &flakyTable{Kernel: r.kernel}
		omitted := &omittedObserver{}
		r.connTable, r.observer = table, omitted
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		const n = 10_500
		many := eps(1)
		for i := range n {
			many.Slice.Endpoints = append(many.Slice.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
		}
		r.emit(svc(), many, synced)
		r.advance(time.Second)
		r.emit(eps(1))
		r.advance(time.Minute)
		if table.most.Load() != 10_000 || omitted.n != n-10_000 {
			t.Errorf("%d in a call, %d omitted", table.most.Load(), omitted.n)
		}
	})
}

// omittedObserver counts the endpoints that were too many.
type omittedObserver struct {
	engine.Observers
	n int
}

func (o *omittedObserver) OnEvent(e engine.Event) {
	if e.Kind == engine.UnrepliedDeleted {
		o.n += e.Omitted
	}
}
