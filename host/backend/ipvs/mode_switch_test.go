package ipvs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/plan"
)

// TestKilledBetweenAnyTwoMessages: whatever is left, each member is one of the old or the new plan, every frontend of
// both has members with weight, and the next start brings the rest.
func TestKilledBetweenAnyTwoMessages(t *testing.T) {
	d := newEnv(t)
	prev := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1, 3, 0})
	next := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{0, 1, 2, 5})
	for k, f := range web(t, 1, 1).Frontends {
		next.Frontends[k] = f
	}
	for n := 1; ; n++ {
		b := d.open()
		d.apply(b, prev, nil)
		f := inject(b)
		f.fault = &fault{after: n, dead: true}
		_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
		fired := f.fault.fired
		b.Close()
		b = d.open()
		got, rerr := b.Read(context.Background())
		if rerr != nil {
			t.Fatal(rerr)
		}
		if fired != (err != nil) {
			t.Fatalf("message %d: fired %v, error %v", n, fired, err)
		}
		for k, f := range got.Frontends {
			if f.Pool.Total() == 0 {
				t.Errorf("message %d: %s has no member with weight", n, k)
			}
			for _, m := range f.Pool.Endpoints {
				if !hasMember(prev.Frontends[k], m) && !hasMember(next.Frontends[k], m) && !(k.Addr.String() == "203.0.113.5" && m.Weight == 0) {
					t.Errorf("message %d: %s has %v, which is neither old nor new", n, k, m)
				}
			}
		}
		for k := range prev.Frontends {
			if got.Frontends[k] == nil {
				t.Errorf("message %d: %s is gone", n, k)
			}
		}
		d.apply(b, next, nil)
		b.Close()
		if !fired {
			t.Logf("%d messages", n-1)
			return
		}
	}
}

func hasMember(f *plan.Frontend, m plan.Endpoint) bool {
	return f != nil && slices.ContainsFunc(f.Pool.Endpoints, func(o plan.Endpoint) bool { return o.Addr == m.Addr && o.Weight == m.Weight })
}

// TestAChangeOfModeInWhichAFrontendFailsDoesNotHappen has nftables forward on, and the rest later at a start.
func TestAChangeOfModeInWhichAFrontendFailsDoesNotHappen(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1)
	nft, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.now }})
	if err != nil {
		t.Fatal(err)
	}
	defer nft.Close()
	if _, err := nft.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	d.mustRun("ipvsadm", "-A", "-t", "10.96.0.80:80", "-s", "rr")
	for k, f := range frontend(t, "10.97.0.1:80/TCP  ClusterIP", "", []int{1}).Frontends {
		p.Frontends[k] = f
	}
	o := d.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for try := range maxDeclines + 1 {
		_, err := b.Apply(context.Background(), p, nil)
		if err == nil || !strings.Contains(err.Error(), "excludeCIDRs") {
			t.Fatalf("try %d: %v", try, err)
		}
		if try < maxDeclines {
			d.ask(d.Client, "tcp", "10.96.0.80:80") // not lost
			if got, err := nft.Read(context.Background()); err != nil || len(got.Frontends) != 1 {
				t.Errorf("try %d: %v, %v", try, got, err)
			}
		}
	}
	d.ask(d.Client, "tcp", "10.97.0.1:80") // a start goes on without the one that fails
}

// TestChangingTheModeRefusesNoConnection goes from nftables to IPVS and back while clients connect.
func TestChangingTheModeRefusesNoConnection(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1, 1)
	nft, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.now }})
	if err != nil {
		t.Fatal(err)
	}
	defer nft.Close()
	if _, err := nft.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	old := d.dial("10.96.0.80:80")
	stop, ended := make(chan struct{}), make(chan error)
	var made int
	var slowest time.Duration
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			begin := time.Now()
			if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("10.96.0.80:80"), askTimeout); err != nil {
				ended <- err
				return
			}
			made++
			slowest = max(slowest, time.Since(begin))
		}
	}()
	var last net.Conn
	for range 3 {
		b := d.open()
		d.apply(b, p, nil)
		if err := checkAlive(old); err != nil {
			t.Errorf("a connection from before IPVS: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		last = d.dial("10.96.0.80:80")
		b.Close()
		if _, err := nft.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		left, err := DrainAll(context.Background(), d.options(), false)
		if err != nil || left == 0 {
			t.Errorf("retired to %d virtual servers, %v: one has a connection", left, err)
		}
		if err := checkAlive(last); err != nil {
			t.Errorf("a connection from IPVS: %v", err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("after %d connections: %v", made, err)
	}
	if slowest >= time.Second {
		t.Errorf("one took %s: its first packet got lost", slowest)
	}
	t.Logf("%d connections meanwhile, the slowest took %s", made, slowest)
	if _, err := Cleanup(context.Background(), d.options()); err != nil {
		t.Error(err)
	}
	if _, err := DrainAll(context.Background(), d.options(), false); err != nil && !errors.Is(err, ErrNoIPVS) {
		t.Error(err)
	}
}
