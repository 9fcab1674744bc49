package fake_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/engine"
)

var _ engine.ConnTable = (*fake.Kernel)(nil)

const shop = `
global
  node-port-addresses 192.168.0.1
  pod-sources 10.244.0.0/16
  masquerade-mark 0x4000
service shop/web
  port http 10.96.0.10:80/TCP ClusterIP affinity=10s
    forward
      10.244.1.1:8080 weight 1
      10.244.1.2:8080 weight 1
      10.244.1.3:8080 weight 1
  port http *4:30080/TCP NodePort masquerade=always affinity=10s
    forward
      10.244.1.1:8080 weight 1
      10.244.1.2:8080 weight 1
      10.244.1.3:8080 weight 1
  port admin 10.96.0.10:81/TCP ClusterIP affinity=10s
    forward
      10.244.1.1:8081 weight 1
      10.244.1.2:8081 weight 1
      10.244.1.3:8081 weight 1
`

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func apply(t testing.TB, k *fake.Kernel, text string) {
	t.Helper()
	if _, err := fake.Open(k).Apply(context.Background(), parse(t, text), nil); err != nil {
		t.Fatal(err)
	}
}

// one returns a plan of one ClusterIP, 10.96.0.10:80/TCP, with endpoints from 10.244.1.1 on with the given weights.
func one(settings string, weights ...int) string {
	var b strings.Builder
	b.WriteString("global\n masquerade-mark 1\nservice shop/web\n port http 10.96.0.10:80/TCP ClusterIP " + settings + "\n")
	b.WriteString("  forward\n")
	for i, w := range weights {
		fmt.Fprintf(&b, "   10.244.1.%d:8080 weight %d\n", i+1, w)
	}
	return b.String()
}

func packet(from, to string) fake.Packet {
	return fake.Packet{From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to), Protocol: model.TCP}
}

func TestAffinityTimeoutRestartsAndExpires(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, shop)
	web := packet("10.244.9.9:0", "10.96.0.10:80")
	first := k.Connect(web)
	if first.Sticky {
		t.Error("a first connection is sticky")
	}
	for range 30 { // 270 s in all: each connection restarts the timeout
		k.Advance(9 * time.Second)
		if r := k.Connect(web); r.Endpoint != first.Endpoint || !r.Sticky {
			t.Fatalf("went to %v, sticky %v; before to %v", r.Endpoint, r.Sticky, first.Endpoint)
		}
	}
	k.Advance(10 * time.Second)
	if r := k.Connect(web); r.Sticky {
		t.Error("sticky after its timeout")
	}
}

func TestAffinityIsPerServicePortAndClient(t *testing.T) {
	k := fake.NewKernel(fake.Options{NodeAddrs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}})
	apply(t, k, shop)
	others := map[netip.Addr]bool{}
	ports := 0
	for i := range 30 {
		from := fmt.Sprintf("10.244.9.%d:0", i+1)
		r := k.Connect(packet(from, "10.96.0.10:80"))
		others[r.Endpoint.Addr()] = true
		if n := k.Connect(packet(from, "192.168.0.1:30080")); n.Endpoint != r.Endpoint || !n.Sticky {
			t.Errorf("the NodePort of the same port went to %v, not %v", n.Endpoint, r.Endpoint)
		}
		if n := k.Connect(packet(from, "10.96.0.10:81")); n.Sticky {
			t.Error("another port shares the entry")
		} else if n.Endpoint.Addr() != r.Endpoint.Addr() {
			ports++
		}
	}
	if len(others) != 3 || ports == 0 {
		t.Errorf("clients went to %v; %d of 30 differ by port", others, ports)
	}
}

func TestAffinityEndsWithItsEndpoint(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	const settings = "affinity=1h0m0s"
	apply(t, k, one(settings, 1, 0, 0))
	web := packet("10.244.9.9:0", "10.96.0.10:80")
	k.Connect(web)
	if r := k.Connect(web); !r.Sticky {
		t.Fatal("not sticky")
	}
	apply(t, k, one(settings, 0, 1, 0))
	apply(t, k, one(settings, 1, 1, 1))
	if r := k.Connect(web); r.Sticky {
		t.Errorf("sticky to %v, which had been removed", r.Endpoint)
	}
}

func TestEstablishedConnectionsSurviveChanges(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, one("", 1))
	web := packet("10.244.9.9:4000", "10.96.0.10:80")
	first := k.Connect(web)
	if first.Established || first.Endpoint.String() != "10.244.1.1:8080" {
		t.Fatalf("%+v", first)
	}
	apply(t, k, one("", 0, 1))
	if r := k.Connect(web); !r.Established || r.Endpoint != first.Endpoint {
		t.Errorf("%+v", r)
	}
	if err := fake.Cleanup(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	if r := k.Connect(web); !r.Established {
		t.Errorf("cleanup ended a connection: %+v", r)
	}
	apply(t, k, one("", 0, 1))
	conns := k.Conns()
	if len(conns) != 1 || conns[0].Endpoint != first.Endpoint {
		t.Fatalf("%+v", conns)
	}
	if n, err := k.Reset(context.Background(), []plan.Reset{{Frontend: first.Frontend, Endpoint: netip.MustParseAddrPort("10.244.1.2:8080")}}, nil); n.Connections != 0 || err != nil {
		t.Errorf("reset of another member: %+v, %v", n, err)
	}
	if n, err := k.Reset(context.Background(), []plan.Reset{{Frontend: first.Frontend, Endpoint: first.Endpoint}}, nil); n.Connections != 1 || err != nil {
		t.Errorf("reset: %+v, %v", n, err)
	}
	if r := k.Connect(web); r.Established || r.Endpoint.String() != "10.244.1.2:8080" {
		t.Errorf("after the reset: %+v", r)
	}
	if !k.Disconnect(web) || k.Disconnect(web) || len(k.Conns()) != 0 {
		t.Error("disconnect ends a connection once")
	}
}

func TestRoundRobinIsSmooth(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, one("balance=round-robin", 4, 1, 2))
	var got []string
	for range 14 {
		got = append(got, k.Connect(packet("10.244.9.9:0", "10.96.0.10:80")).Endpoint.Addr().String()[len("10.244.1."):])
	}
	if s := strings.Join(got, ""); s != "13121311312131" {
		t.Errorf("turns: %s", s)
	}
}

func TestLeastConnectionsFollowsWeights(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, one("balance=least-connections", 1, 3))
	count := map[string]int{}
	for i := range 40 {
		count[k.Connect(packet(fmt.Sprintf("10.244.9.9:%d", 1000+i), "10.96.0.10:80")).Endpoint.String()]++
	}
	if count["10.244.1.1:8080"] != 10 {
		t.Errorf("%v, want 10 and 30", count)
	}
	// An endpoint that loses its connections gets the next ones.
	first := netip.MustParseAddrPort("10.244.1.1:8080")
	if n, err := k.Reset(context.Background(), []plan.Reset{{Frontend: plan.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: model.TCP}, Endpoint: first}}, nil); n.Connections != 10 || err != nil {
		t.Fatalf("reset: %+v, %v", n, err)
	}
	for i := range 10 {
		if r := k.Connect(packet(fmt.Sprintf("10.244.9.9:%d", 2000+i), "10.96.0.10:80")); r.Endpoint != first {
			t.Errorf("connection %d went to %v", i, r.Endpoint)
		}
	}
}

func TestSourceHashIsStableAndWeighted(t *testing.T) {
	const n = 4000
	where := func(text string) (out []netip.AddrPort) {
		k := fake.NewKernel(fake.Options{})
		apply(t, k, text)
		for i := range n {
			p := packet(fmt.Sprintf("10.1.%d.%d:0", i/250, i%250), "10.96.0.10:80")
			r := k.Connect(p)
			if k.Connect(p).Endpoint != r.Endpoint {
				t.Fatal("a client moved with nothing changed")
			}
			out = append(out, r.Endpoint)
		}
		return out
	}
	count := map[netip.AddrPort]int{}
	before, after := where(one("balance=source-hash", 1, 2, 1)), where(one("balance=source-hash", 1, 2, 1, 1))
	newcomer := netip.MustParseAddrPort("10.244.1.4:8080")
	for i, m := range before {
		count[m]++
		if after[i] != m && after[i] != newcomer {
			t.Fatalf("client %d moved from %v to %v when %v came", i, m, after[i], newcomer)
		}
	}
	for m, want := range map[string]int{"10.244.1.1:8080": n / 4, "10.244.1.2:8080": n / 2, "10.244.1.3:8080": n / 4} {
		if got := count[netip.MustParseAddrPort(m)]; got < want*9/10 || got > want*11/10 {
			t.Errorf("%s has %d of %d clients, due %d", m, got, n, want)
		}
	}
}

func TestSameSeedSameResults(t *testing.T) {
	run := func(seed uint64) (out []netip.AddrPort) {
		k := fake.NewKernel(fake.Options{Seed: seed})
		apply(t, k, one("", 1, 1, 1))
		for range 50 {
			out = append(out, k.Connect(packet("10.244.9.9:0", "10.96.0.10:80")).Endpoint)
		}
		return out
	}
	if !slices.Equal(run(1), run(1)) || slices.Equal(run(1), run(2)) {
		t.Error("answers do not follow the seed")
	}
}

func TestFaultFailsApplyAndNamesTheObject(t *testing.T) {
	boom := errors.New("no buffer space available")
	for _, lost := range []bool{false, true} {
		k := fake.NewKernel(fake.Options{})
		b := fake.Open(k)
		apply(t, k, one("", 1, 1))
		next := parse(t, one("", 1, 2))
		disarm := k.Inject(fake.Fault{At: 1, Err: boom, Lost: lost})
		r, err := b.Apply(context.Background(), next, nil)
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "fake: replace 10.96.0.10:80/TCP of shop/web:http") {
			t.Errorf("lost %v: %v", lost, err)
		}
		if r.Messages != 1 || !disarm() {
			t.Errorf("lost %v: %+v", lost, r)
		}
		if got, _ := b.Read(context.Background()); got.Equal(next) != lost {
			t.Errorf("lost %v:\n%s", lost, plan.Format(got))
		}
	}
}

func TestApplyAddsFirstAndDeletesLast(t *testing.T) {
	other := strings.ReplaceAll(one("", 1), "10.96.0.10", "10.96.0.20")
	k := fake.NewKernel(fake.Options{})
	b := fake.Open(k)
	apply(t, k, one("", 1))
	k.Inject(fake.Fault{At: 2, Err: errors.New("x")})
	if _, err := b.Apply(context.Background(), parse(t, other), nil); err == nil || !strings.Contains(err.Error(), "delete 10.96.0.10:80/TCP") {
		t.Fatal(err)
	}
	if got, _ := b.Read(context.Background()); len(got.Frontends) != 2 {
		t.Errorf("programmed:\n%s", plan.Format(got))
	}
}

func TestLeftoversAreRemovedWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock of the bubble
		k := fake.NewKernel(fake.Options{Linger: 5 * time.Millisecond, Now: time.Now})
		b := fake.Open(k)
		apply(t, k, one("", 1))
		next := parse(t, one("", 2, 1))
		r, err := b.Apply(context.Background(), next, nil)
		if err != nil || r.RequeueAfter != 5*time.Millisecond || k.Leftovers() != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(2 * time.Millisecond)
		if r, err = b.Apply(context.Background(), next, &plan.Delta{}); err != nil || r.Messages != 0 || r.RequeueAfter != 3*time.Millisecond {
			t.Fatalf("too early: %+v, %v", r, err)
		}
		time.Sleep(r.RequeueAfter)
		if r, err = b.Apply(context.Background(), next, &plan.Delta{}); err != nil || r.Messages != 1 || r.RequeueAfter != 0 || k.Leftovers() != 0 {
			t.Fatalf("when due: %+v, %v", r, err)
		}
	})
}

func TestClosedBackendReturnsErrClosed(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, one("", 1))
	b := fake.Open(k)
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	if _, err := b.Apply(context.Background(), &plan.Plan{}, nil); !errors.Is(err, fake.ErrClosed) {
		t.Error(err)
	}
	if _, err := b.Read(context.Background()); !errors.Is(err, fake.ErrClosed) {
		t.Error(err)
	}
	if r := k.Connect(packet("10.244.9.9:0", "10.96.0.10:80")); r.Verdict != plan.Forward || !r.Endpoint.IsValid() {
		t.Errorf("%+v", r)
	}
}

func TestCanceledApplyStopsBetweenMessages(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := fake.Open(k).Apply(ctx, parse(t, shop), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, ok := k.Table(fake.Name); ok {
		t.Error("something was sent")
	}
}

func TestConcurrentApplyNeverInterruptsForwarding(t *testing.T) {
	k := fake.NewKernel(fake.Options{})
	apply(t, k, one("", 1, 1))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := k.Connect(packet(fmt.Sprintf("10.244.9.%d:0", i+1), "10.96.0.10:80"))
				if !r.Ours || r.Verdict != plan.Forward {
					t.Errorf("%+v", r)
					return
				}
			}
		})
	}
	b := fake.Open(k)
	plans := []*plan.Plan{parse(t, one("", 1, 1)), parse(t, one("", 0, 3, 2)), parse(t, one("balance=round-robin", 5))}
	for i := range 2000 {
		next := plans[(i+1)%len(plans)]
		if _, err := b.Apply(context.Background(), next, plan.Diff(plans[i%len(plans)], next)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if s := k.Stats(); s.Applies != 2001 || s.Messages < 2000 || s.Elements <= s.Messages {
		t.Errorf("%+v", s)
	}
}
