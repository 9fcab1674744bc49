package loads

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller/orca"
)

// asker answers in place of endpoints, in a bubble, which has no network.
type asker func(ctx context.Context, addr netip.AddrPort, interval time.Duration, report func(*orca.Report)) error

func refuse(context.Context, netip.AddrPort, time.Duration, func(*orca.Report)) error {
	return errors.New("refused")
}

// bubble runs a collector for a test whose time is virtual.
func bubble(t *testing.T, ask asker, test func(t *testing.T, c *Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := New(Options{Ask: ask, Check: anyPod})
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		test(t, c)
		cancel()
		<-ended
	})
}

// TestFailingEndpointIsLeftAlone: from a second to five minutes, half of it at random, and from a second again after a stream
// that has lasted.
func TestFailingEndpointIsLeftAlone(t *testing.T) {
	var mu sync.Mutex // of the following
	var asked []time.Time
	lasts := false
	ask := func(ctx context.Context, _ netip.AddrPort, _ time.Duration, report func(*orca.Report)) error {
		mu.Lock()
		asked = append(asked, time.Now())
		long := lasts
		lasts = false
		mu.Unlock()
		if long {
			report(&orca.Report{Values: map[string]float64{"eps": 1}})
			time.Sleep(2 * steady)
		}
		return errors.New("refused")
	}
	bubble(t, ask, func(t *testing.T, c *Collector) {
		c.Set([]Service{of("a/web", 1, "192.0.2.1")})
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		want := minBackoff
		for i := 1; i < len(asked); i++ {
			if gap := asked[i].Sub(asked[i-1]); gap < want/2 || gap > want {
				t.Errorf("failure %d: asked again after %s, want %s to %s", i, gap, want/2, want)
			}
			want = min(2*want, maxBackoff)
		}
		if n := len(asked); n < 15 || n > 40 {
			t.Errorf("asked %d times in an hour", n)
		}
		lasts = true
		n := len(asked)
		mu.Unlock()
		time.Sleep(maxBackoff + 2*steady + minBackoff)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(asked) < n+2 || asked[n+1].Sub(asked[n])-2*steady > minBackoff {
			t.Errorf("after a stream that has lasted: %v", asked[n:])
		}
	})
}

// TestConnectionsASecond: of 10,000 endpoints that fail at once, those of the namespaces come in turn.
func TestConnectionsASecond(t *testing.T) {
	bubble(t, refuse, func(t *testing.T, c *Collector) {
		var all []Service
		for _, namespace := range []string{"a", "b"} {
			for _, name := range []string{"1", "2", "3", "4", "5"} {
				all = append(all, of(namespace+"/"+name, 1, many(1000)...))
			}
		}
		for i := range all {
			all[i].Port = uint16(i + 1) // else the Services of a namespace have the same endpoints
		}
		c.Set(all)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		n := c.Counts()
		if n.Connects < 9*connectRate || n.Connects > 10*connectRate+1 || n.Endpoints != 10_000 {
			t.Errorf("%+v in ten seconds", n)
		}
		tried := map[string]int{}
		for k, target := range c.targets {
			if target.tried() {
				tried[k.namespace]++
			}
		}
		if d := tried["a"] - tried["b"]; d < -1 || d > 1 {
			t.Errorf("%v", tried)
		}
	})
}

// TestValueEndsWithItsReport: three minutes after the last one, also if a new collector goes on from what is written, and at once
// with its endpoint.
func TestValueEndsWithItsReport(t *testing.T) {
	once := func(_ context.Context, _ netip.AddrPort, _ time.Duration, report func(*orca.Report)) error {
		report(&orca.Report{Values: map[string]float64{"eps": 1.234}})
		return errors.New("gone")
	}
	first := true
	ask := func(ctx context.Context, addr netip.AddrPort, d time.Duration, report func(*orca.Report)) error {
		if !first {
			return errors.New("refused")
		}
		first = false
		return once(ctx, addr, d, report)
	}
	at := func(t *testing.T, c *Collector, d time.Duration, want string) {
		t.Helper()
		time.Sleep(d)
		synctest.Wait()
		if got := text(c, "a/web"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	const value = "1/0 192.0.2.1 map[eps:1.2]"
	bubble(t, ask, func(t *testing.T, c *Collector) {
		c.Set([]Service{of("a/web", 1, "192.0.2.1")})
		at(t, c, valid-time.Second, value)
		at(t, c, 2*time.Second, "0/1 192.0.2.1: refused")
	})
	bubble(t, refuse, func(t *testing.T, c *Collector) {
		s := of("a/web", 1, "192.0.2.1", "192.0.2.2")
		s.Written = []v1alpha1.ReportedLoad{{Address: "192.0.2.1", Values: map[string]v1alpha1.LoadValue{"eps": "1.2"}}, {Address: "192.0.2.9"}}
		c.Set([]Service{s})
		at(t, c, valid-time.Second, "1/1 192.0.2.1 map[eps:1.2] 192.0.2.2: refused")
		c.Set([]Service{s}) // does not make it younger
		at(t, c, 2*time.Second, "0/2 192.0.2.1: refused")
	})
	bubble(t, once, func(t *testing.T, c *Collector) {
		c.Set([]Service{of("a/web", 1, "192.0.2.1")})
		at(t, c, time.Second, value)
		c.Set([]Service{of("a/web", 1)})
		at(t, c, 0, "0/0")
		another := of("a/web", 1, "192.0.2.1")
		another.Endpoints[0].UID = "another Pod with that address"
		c.Set([]Service{another})
		if got := text(c, "a/web"); !strings.HasPrefix(got, "0/1") && got != "nothing" {
			t.Error(got)
		}
	})
}

// TestNothingIsWrittenBeforeEndpointsHaveBeenAsked: a new Service is written once, not for each endpoint that answers.
func TestNothingIsWrittenBeforeEndpointsHaveBeenAsked(t *testing.T) {
	silent := func(ctx context.Context, _ netip.AddrPort, _ time.Duration, _ func(*orca.Report)) error {
		<-ctx.Done()
		return ctx.Err()
	}
	bubble(t, silent, func(t *testing.T, c *Collector) {
		c.Set([]Service{of("a/web", 1, "192.0.2.1")})
		time.Sleep(firstWait - time.Second)
		if got := text(c, "a/web"); got != "nothing" {
			t.Error(got)
		}
		time.Sleep(time.Second)
		if got := text(c, "a/web"); got != "0/1 192.0.2.1: not asked yet" {
			t.Error(got)
		}
	})
}
