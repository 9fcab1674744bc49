package testbed

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// closedPort is one on which no endpoint listens.
const closedPort = 9001

// retryBed has a Service of each kind of frontend, in both families, whose endpoints refuse connections until another one takes
// their place.
type retryBed struct {
	*Bed
	testing.TB
	d RetryPlane
}

// RetryPlane is a backend on a Bed's node, and the counters of its rules.
type RetryPlane struct {
	Apply   func(next *plan.Plan) error
	Retried func() (retried, noRoom uint64, err error)
}

// retryService is where clients connect, and how the frontend is named in a plan.
type retryService struct {
	to   string
	key  plan.Key
	kind plan.Kind
}

func retryServices() (out []retryService) {
	for _, s := range []struct {
		to   string
		kind plan.Kind
	}{
		{"10.96.0.10:80", plan.ClusterIP}, {"203.0.113.1:80", plan.ExternalIP}, {"192.168.0.1:30080", plan.NodePort},
		{"[fd00:10:96::a]:80", plan.ClusterIP}, {"[2001:db8:1::1]:80", plan.LoadBalancer}, {"[fd00:192::1]:30080", plan.NodePort},
	} {
		at := netip.MustParseAddrPort(s.to)
		k := plan.Key{Addr: at.Addr(), Port: at.Port(), Protocol: model.TCP}
		if s.kind == plan.NodePort {
			k.Addr = netip.IPv4Unspecified()
			if at.Addr().Is6() {
				k.Addr = netip.IPv6Unspecified()
			}
		}
		out = append(out, retryService{s.to, k, s.kind})
	}
	return out
}

// program gives all Services one endpoint, a port of a host.
func (b *retryBed) program(h *testnet.Host, port uint16, retry bool) {
	b.Helper()
	p := &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}, Global: plan.Global{
		NodePortAddrs:  []netip.Addr{node4, node6},
		PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")},
		MasqueradeMark: 0x4000,
	}}
	for _, s := range retryServices() {
		like := other4
		if s.key.Family() == model.IPv6 {
			like = other6
		}
		a := like
		if h != b.Lab.Node {
			a = h.Addr(like)
		}
		f := &plan.Frontend{
			Key: s.key, Kind: s.kind, RetryRefused: retry, Masquerade: plan.MasqueradeAlways,
			Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: strings.ToLower(s.kind.String())}, Protocol: model.TCP},
			Pool:  plan.Pool{Endpoints: []plan.Endpoint{{Addr: netip.AddrPortFrom(a, port), Weight: 1}}},
		}
		if s.kind == plan.ClusterIP {
			f.Masquerade, f.Affinity = plan.MasqueradeOutside, time.Hour
		}
		p.Frontends[s.key] = f
	}
	if err := b.d.Apply(p); err != nil {
		b.Fatal(err)
	}
}

// expectRetried checks how many refusals the rules have dropped.
func (b *retryBed) expectRetried(what string, want uint64) {
	b.Helper()
	if n, noRoom, err := b.d.Retried(); err != nil || n != want || noRoom != 0 {
		b.Errorf("%s: %d retried, no room for %d, %v; want %d", what, n, noRoom, err, want)
	}
}

// connectAll connects each client to each Service at once and returns what they saw, by "client to address".
func (b *retryBed) connectAll(meanwhile func(connections int)) map[string]string {
	b.Helper()
	saw, mu := map[string]string{}, sync.Mutex{}
	var wg sync.WaitGroup
	for _, c := range []*testnet.Host{b.Client, b.Pods[2], b.Lab.Node, b.Pods[1], b.Pods[0]} {
		for _, s := range retryServices() {
			wg.Go(func() {
				a, err := c.Ask("tcp", netip.MustParseAddrPort(s.to), testnet.AnswerTimeout)
				result := a.Server
				switch {
				case testnet.Refused(err):
					result = "refused"
				case errors.Is(err, unix.ECONNRESET):
					result = "reset"
				case err != nil:
					result = err.Error()
				}
				mu.Lock()
				saw[c.Name+" to "+s.to] = result
				mu.Unlock()
			})
		}
	}
	meanwhile(5 * len(retryServices()))
	wg.Wait()
	return saw
}

func (b *retryBed) expect(what string, saw map[string]string, want string) {
	b.Helper()
	for connection, got := range saw {
		if got != want {
			b.Errorf("%s: %s: %s, want %s", what, connection, got, want)
		}
	}
}

const (
	// synRetry is after which time a client repeats its SYN: then another endpoint has to have taken the place of the one that
	// refused it.
	synRetry = time.Second
	maxTries = 30 // on a busy machine, replacing it takes longer
)

// CheckRetries connects clients of each kind to Services whose endpoint refuses them: a Pod, and the node itself.
func (d *Bed) CheckRetries(t testing.TB, dp RetryPlane) {
	b, none := &retryBed{d, t, dp}, func(int) {}
	b.program(d.Pods[0], closedPort, false)
	b.expect("without retries", b.connectAll(none), "refused")
	b.expectRetried("without retries", 0)
	retried := uint64(0)
	for _, from := range []*testnet.Host{d.Pods[0], d.Lab.Node} {
		saw, inTime := map[string]string(nil), false
		for try := 0; !inTime; try++ {
			if try == maxTries {
				t.Fatalf("%d times, the endpoint was replaced later than clients repeated their SYN", try)
			}
			b.program(from, closedPort, true)
			began := time.Now()
			saw = b.connectAll(func(connections int) {
				retried += uint64(connections)
				b.await(retried)
				b.program(d.Pods[1], 9000, true)
				inTime = time.Since(began) < synRetry
			})
		}
		b.expect(from.Name+" refuses and is replaced", saw, "p2")

		b.program(from, closedPort, true)
		saw = b.connectAll(none)
		retried += uint64(len(saw))
		b.expect(from.Name+" refuses, and again", saw, "refused")
		b.expectRetried(from.Name+" refuses, and again", retried)
	}
	for _, c := range []*testnet.Host{d.Client, d.Pods[2], d.Lab.Node} { // to the Pod itself
		for _, a := range d.Pods[0].Addrs {
			if _, err := c.Ask("tcp", netip.AddrPortFrom(a, closedPort), testnet.AnswerTimeout); !testnet.Refused(err) {
				t.Errorf("%s to the Pod: %v", c.Name, err)
			}
		}
	}
	b.program(d.Pods[0], closedPort, false)
	b.expect("without retries again", b.connectAll(none), "refused")
	b.expectRetried("at the end", retried)
}

// await waits until the rules have dropped so many refusals.
func (b *retryBed) await(want uint64) {
	b.Helper()
	for end := time.Now().Add(testnet.AnswerTimeout); ; time.Sleep(time.Millisecond) {
		switch n, _, err := b.d.Retried(); {
		case err != nil:
			b.Fatal(err)
		case n == want:
			return
		case time.Now().After(end):
			b.Fatalf("%d retried, want %d", n, want)
		}
	}
}
