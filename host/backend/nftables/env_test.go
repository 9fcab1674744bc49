package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// testEnv is a lab with a backend on its node, Pods p1 to p4 and a client that is not a Pod.
type testEnv struct {
	testing.TB
	lab    *testnet.Lab
	pods   []*testnet.Host
	client *testnet.Host
	b      *Backend
	clock  *clock
}

// clock is set by tests.
type clock struct{ t time.Time }

func (c *clock) Now() time.Time { return c.t }

var (
	node4, node6   = netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:192::1")
	other4, other6 = netip.MustParseAddr("192.168.7.7"), netip.MustParseAddr("fd00:192::7")
)

const timeout = testnet.AnswerTimeout

// newTestEnv creates a lab with a number of Pods that serve port 9000 in both families, over all protocols of the
// kernel. Pod n has the addresses 10.244.0.n and fd00:10:244::n.
func newTestEnv(t testing.TB, pods int) *testEnv {
	t.Helper()
	lab, err := testnet.New(node4, node6, other4, other6)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	d := &testEnv{TB: t, lab: lab, clock: &clock{time.Unix(1_700_000_000, 0)}}
	protocols := testbed.Protocols(t)
	host := func(name, v4, v6 string) *testnet.Host {
		h, err := lab.AddHost(name, netip.MustParseAddr(v4), netip.MustParseAddr(v6))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for i := 1; i <= pods; i++ {
		p := host(fmt.Sprintf("p%d", i), fmt.Sprintf("10.244.0.%d", i), fmt.Sprintf("fd00:10:244::%x", i))
		d.pods = append(d.pods, p)
		for _, a := range p.Addrs {
			for _, proto := range protocols {
				s, err := p.Serve(strings.ToLower(proto.String()), netip.AddrPortFrom(a, 9000), p.Name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
			}
		}
	}
	if pods > 0 {
		d.client = host("client", "198.51.100.9", "2001:db8::9")
	}
	d.b = d.open()
	t.Cleanup(func() { d.b.Close() })
	return d
}

// open opens a Backend, which the test closes: with a cleanup for each, the state of all would stay in memory.
func (d *testEnv) open() *Backend {
	d.Helper()
	return d.openWith(Options{})
}

// openWith is open with other options.
func (d *testEnv) openWith(o Options) *Backend {
	d.Helper()
	o.Netns, o.Now = d.lab.Node.Fd(), d.clock.Now
	b, err := Open(o)
	if err != nil {
		d.Fatal(err)
	}
	return b
}

// restart replaces d.b by a Backend that knows nothing.
func (d *testEnv) restart() {
	d.Helper()
	d.b.Close()
	d.b = d.open()
}

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// apply applies a plan without a delta and checks that it reads back normalized.
func (d *testEnv) apply(text string) *plan.Plan {
	d.Helper()
	p := parse(d, text)
	if _, err := d.b.Apply(context.Background(), p, nil); err != nil {
		d.Fatal(err)
	}
	d.expectPlan(p)
	return p
}

func (d *testEnv) expectPlan(p *plan.Plan) {
	d.Helper()
	want := plan.Normalize(p, d.b.Caps())
	got, err := d.b.Read(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if diff := planDiff(want, got); diff != "" {
		d.Fatalf("the kernel does not have the plan (-want +got):\n%s", diff)
	}
}

func planDiff(want, got *plan.Plan) string {
	if want.Equal(got) {
		return ""
	}
	if diff := cmp.Diff(plan.Format(want), plan.Format(got)); diff != "" {
		return diff
	}
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty())
}

// ask connects once and returns the answer.
func (d *testEnv) ask(from *testnet.Host, network, to string) testnet.Answer {
	d.Helper()
	a, err := from.Ask(network, netip.MustParseAddrPort(to), timeout)
	if err != nil {
		d.Fatalf("%s asks %s %s: %v", from.Name, network, to, err)
	}
	return a
}

func (d *testEnv) expectRefused(from *testnet.Host, network, to string) {
	d.Helper()
	begin := time.Now()
	_, err := from.Ask(network, netip.MustParseAddrPort(to), timeout)
	if !testnet.Refused(err) || time.Since(begin) > timeout/2 {
		d.Errorf("%s asks %s %s: got %v after %s, want a quick refusal", from.Name, network, to, err, time.Since(begin))
	}
}

func (d *testEnv) expectDropped(from *testnet.Host, network, to string) {
	d.Helper()
	if _, err := from.Ask(network, netip.MustParseAddrPort(to), 150*time.Millisecond); !testnet.TimedOut(err) {
		d.Errorf("%s asks %s %s: got %v, want a timeout", from.Name, network, to, err)
	}
}

// nft runs nft on the node. If there is none, the test is skipped, or fails in CI.
func (d *testEnv) nft(stdin string, args ...string) (string, error) {
	d.Helper()
	testenv.RequireProgram(d, "nft", "nftables")
	return d.lab.Node.Run(stdin, append([]string{"nft"}, args...)...)
}
