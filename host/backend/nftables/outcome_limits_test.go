package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func manyEndpoints(n int) *plan.Plan {
	p := &plan.Plan{Global: plan.Global{MasqueradeMark: 1 << 14}, Frontends: map[plan.Key]*plan.Frontend{}}
	f := clusterFrontend(0, 1, 0)
	f.Outcomes, f.Pool.Endpoints = true, nil
	for i := range n {
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 80), Weight: 1})
	}
	p.Frontends[f.Key] = f
	return p
}

func TestCountedEndpointsAreBounded(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	const beyond = 100
	prev := manyEndpoints(MaxCountedEndpoints + beyond)
	d.mustApply(prev, nil)
	expect := func(when string, counted, uncounted int) {
		t.Helper()
		all, err := d.b.ReadOutcomes(context.Background())
		if err != nil || len(all) != counted || d.b.UncountedEndpoints() != uncounted {
			t.Errorf("%s: %d endpoints are counted and %d are not, %v; want %d and %d", when, len(all), d.b.UncountedEndpoints(), err, counted, uncounted)
		}
	}
	expect("too many", MaxCountedEndpoints, beyond)
	d.b = d.open()
	d.mustApply(prev, nil)
	expect("after a restart", MaxCountedEndpoints, beyond)
	next := manyEndpoints(MaxCountedEndpoints + beyond)
	f := next.Frontends[next.Keys()[0]]
	f.Pool.Endpoints = f.Pool.Endpoints[2*beyond:]
	d.mustApply(next, plan.Diff(prev, next))
	expect("when others left", MaxCountedEndpoints-beyond, 0)
	d.mustApply(&plan.Plan{Global: next.Global}, nil)
	expect("without frontends", 0, 0)
}

// TestCostOfCountedEndpoints counts messages and elements of a change among many counted endpoints.
func TestCostOfCountedEndpoints(t *testing.T) {
	testenv.OnceForAllKernels(t)
	cost := func(endpoints int) backend.Report {
		d := newTestEnv(t, 0)
		prev := manyEndpoints(endpoints)
		d.mustApply(prev, nil)
		next := manyEndpoints(endpoints)
		next.Frontends[next.Keys()[0]].Pool.Endpoints[0].Addr = netip.MustParseAddrPort("10.199.0.1:80")
		r := d.report(next, plan.Diff(prev, next))
		r.Longest = 0
		return r
	}
	few, many := cost(64), cost(8192)
	if few != many {
		t.Errorf("of 64 endpoints: %+v; of 8192: %+v", few, many)
	}
	if many.Elements > 10 { // two of a slot, two of a hairpin, six of counters
		t.Errorf("an endpoint was replaced: %+v", many)
	}
}

func BenchmarkReadOutcomes(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := newTestEnv(b, 0)
			d.mustApply(manyEndpoints(n), nil)
			for b.Loop() {
				if all, err := d.b.ReadOutcomes(context.Background()); err != nil || len(all) != n {
					b.Fatal(len(all), err)
				}
			}
		})
	}
}

// TestRepliesCountAgainWithoutRoomForFlows fills the set of flows. A UDP flow's first reply is the only one that counts as
// long as there is room; beyond that, the connections are counted for which there is none.
func TestRepliesCountAgainWithoutRoomForFlows(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(service(frontend("10.96.0.10:80/UDP ClusterIP masquerade=never outcomes=counted", "1")))
	const replies = 3
	exchange := func() (answered uint64) {
		t.Helper()
		read := func() uint64 {
			all, err := d.b.ReadOutcomes(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return all[model.EndpointKey{Addr: netip.AddrPortFrom(d.pods[0].Addr(node4), 9000), Protocol: model.UDP}].Answered
		}
		before := read()
		c, err := d.client.Dial(context.Background(), "udp", netip.MustParseAddrPort("10.96.0.10:80"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range replies {
			_ = c.SetDeadline(time.Now().Add(timeout))
			if _, err := c.Write([]byte("who?")); err != nil {
				t.Fatal(err)
			}
			if _, err := testnet.Greeting(c); err != nil {
				t.Fatal(err)
			}
		}
		return read() - before
	}
	if n := exchange(); n != 1 {
		t.Errorf("%d replies of a flow count", n)
	}
	var full strings.Builder
	full.WriteString("flush set ip sluice outcome_flows; add element ip sluice outcome_flows { ")
	for i := range flowsSize {
		fmt.Fprintf(&full, "10.9.%d.%d . 1 . 10.9.0.1 . 2 . udp timeout 1h, ", i>>8, i&255)
	}
	d.mustNFT(full.String() + "}")
	begin := time.Now()
	n := exchange()
	if n != replies && time.Since(begin) < 2*time.Second { // conntrack sets the status assured after two seconds
		t.Errorf("%d replies of a flow count although there is no room", n)
	}
	out, err := d.nft("", "list", "chain", "ip", "sluice", "remember_reply")
	if want := fmt.Sprintf("counter packets %d ", n); err != nil || !strings.Contains(out, want) {
		t.Errorf("want %q in:\n%s%v", want, out, err)
	}
}

// countdown is a context that ends when its error has been asked for so many times.
type countdown struct {
	context.Context
	left int
}

// Err implements context.Context.
func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestReadingEndsWithItsContext: a change waits for a reading that gives way to it, but not for the rest of a dump.
func TestReadingEndsWithItsContext(t *testing.T) {
	const n = 4000 // some 10 datagrams for each of 3 counters
	d := newTestEnv(t, 0)
	d.mustApply(manyEndpoints(n), nil)
	for left := range 12 {
		ctx := &countdown{context.Background(), left}
		if all, err := d.b.ReadOutcomes(ctx); !errors.Is(err, context.Canceled) || ctx.left != -1 {
			t.Fatalf("%d replies were read: %d endpoints, %v; asked %d times afterwards", left, len(all), err, -1-ctx.left)
		}
	}
	d.mustApply(manyEndpoints(n+1), nil)
	if all, err := d.b.ReadOutcomes(context.Background()); err != nil || len(all) != n+1 {
		t.Errorf("%d endpoints, %v", len(all), err)
	}
}

// TestReadingRunsBesideChanges: readings neither miss endpoints that stay nor delay changes, while others come and leave all the
// time.
func TestReadingRunsBesideChanges(t *testing.T) {
	const stay, changing, changes = 3000, 40, 300
	d := newTestEnv(t, 0)
	plans := [2]*plan.Plan{manyEndpoints(stay + changing), manyEndpoints(stay + changing)}
	for i, p := range plans { // of the changing ones, each plan has half
		f := p.Frontends[p.Keys()[0]]
		f.Pool.Endpoints = slices.Delete(f.Pool.Endpoints, i*changing/2, (i+1)*changing/2)
	}
	d.mustApply(plans[0], nil)
	var staying []model.EndpointKey
	for _, e := range plans[0].Frontends[plans[0].Keys()[0]].Pool.Endpoints[changing/2:] {
		staying = append(staying, model.EndpointKey{Addr: e.Addr, Protocol: model.TCP})
	}
	done, readings := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { readings <- n }()
		for ; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			all, err := d.b.ReadOutcomes(context.Background())
			if err != nil {
				t.Errorf("reading %d: %v", n, err)
				return
			}
			for _, k := range staying {
				if _, ok := all[k]; !ok {
					t.Errorf("reading %d: %v is missing", n, k)
					return
				}
			}
			if len(all) > stay+changing {
				t.Errorf("reading %d: %d endpoints", n, len(all))
			}
		}
	}()
	for i := range changes {
		next := plans[(i+1)%2]
		if _, err := d.b.Apply(context.Background(), next, plan.Diff(plans[i%2], next)); err != nil {
			t.Error(err)
		}
	}
	close(done)
	if n := <-readings; n < 3 {
		t.Errorf("%d readings during %d changes", n, changes)
	}
}
