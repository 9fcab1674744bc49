package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func (d *testEnv) bed() *testbed.Bed {
	return &testbed.Bed{Lab: d.lab, Pods: d.pods, Client: d.client}
}

// TestOutcomesEqualWhatClientsSaw compares the counters of endpoints of each kind with what clients of each kind saw.
func TestOutcomesEqualWhatClientsSaw(t *testing.T) {
	d := newTestEnv(t, 2)
	prev := &plan.Plan{}
	d.mustApply(prev, nil)
	d.bed().CheckOutcomes(t, testbed.DataPlane{
		Apply: func(next *plan.Plan) error {
			_, err := d.b.Apply(context.Background(), next, plan.Diff(prev, next))
			prev = next
			return err
		},
		ReadOutcomes: func() (map[model.EndpointKey]backend.OutcomeCounters, error) {
			return d.b.ReadOutcomes(context.Background())
		},
	})
}

const (
	countedService = "10.96.0.10:80/TCP ClusterIP masquerade=never outcomes=counted"
	plainService   = "10.96.0.10:80/TCP ClusterIP masquerade=never"
)

// counters returns the counters of a Pod's port 9000 over TCP.
func (d *testEnv) counters(pod int) (c backend.OutcomeCounters, ok bool) {
	d.Helper()
	all, err := d.b.ReadOutcomes(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	c, ok = all[model.EndpointKey{Addr: netip.AddrPortFrom(d.pods[pod-1].Addr(node4), 9000), Protocol: model.TCP}]
	return c, ok
}

func (d *testEnv) expectAttempts(when string, pod int, want uint64) {
	d.Helper()
	if c, ok := d.counters(pod); !ok || c != (backend.OutcomeCounters{Attempts: want, Answered: want}) {
		d.Errorf("%s: p%d: got %+v (%v), want %d connections", when, pod, c, ok, want)
	}
}

func (d *testEnv) askTimes(n int) {
	d.Helper()
	for range n {
		d.ask(d.client, "tcp", "10.96.0.10:80")
	}
}

func TestRulesThatCountExistWhileAFrontendWantsThem(t *testing.T) {
	d := newTestEnv(t, 2)
	mentions := func() int {
		out, err := d.nft("", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(out, "outcome") + strings.Count(out, "count_answer")
	}
	off, on := service(frontend(plainService, "1 2")), service(frontend(countedService, "1 2"))
	prev := d.apply(off)
	if n := mentions(); n != 0 {
		t.Errorf("without Outcomes the tables mention them %d times", n)
	}
	for round, text := range []string{on, off, on, off} {
		next := parse(t, text)
		delta := plan.Diff(prev, next)
		if round > 1 { // by reading the tables
			d.b, delta = d.open(), nil
		}
		d.mustApply(next, delta)
		d.expectPlan(next)
		if n := mentions(); (n > 0) != (text == on) {
			t.Errorf("round %d: the tables mention outcomes %d times", round, n)
		}
		d.askTimes(3)
		if _, ok := d.counters(1); ok != (text == on) {
			t.Errorf("round %d: counters of p1: %v", round, ok)
		}
		prev = next
	}
}

// TestCountersSurvive checks through which changes an endpoint keeps its counters.
func TestCountersSurvive(t *testing.T) {
	d := newTestEnv(t, 2)
	text := service(frontend(countedService, "1"))
	prev := d.apply(text)
	d.askTimes(3)
	d.expectAttempts("at first", 1, 3)
	change := func(name, text string) {
		t.Helper()
		next := parse(t, text)
		d.mustApply(next, plan.Diff(prev, next))
		prev = next
		d.expectAttempts(name, 1, 3)
	}
	change("with another endpoint", service(frontend(countedService, "1 2")))
	change("with weight 0", service(frontend(countedService, "1*0 2")))
	change("in another frontend", service(frontend("10.96.0.11:80/TCP ClusterIP masquerade=never outcomes=counted", "1")))
	d.b = d.open()
	d.mustApply(prev, nil)
	d.expectAttempts("after a restart", 1, 3)
	if r, err := d.b.Apply(context.Background(), prev, nil); err != nil || r != (backend.Report{}) {
		t.Errorf("applied again: %+v, %v", r, err)
	}
	change("as it was", text)
	d.mustNFT("add element ip sluice outcome_attempts { 10.244.0.77 . tcp . 1 }")
	d.mustApply(prev, nil)
	d.expectAttempts("when a foreign endpoint was deleted", 1, 3)
}

func TestCountersStartAgainAfterRepair(t *testing.T) {
	for name, damage := range map[string]string{
		"element deleted":  "delete element ip sluice outcome_attempts { 10.244.0.1 . tcp . 9000 }",
		"set flushed":      "flush set ip sluice outcome_answered",
		"chain changed":    "flush chain ip sluice count_answer",
		"foreign rule":     "insert rule ip sluice outcomes_input counter",
		"hook deleted":     "delete chain ip sluice outcomes_output",
		"no counters":      "flush chain ip sluice count_attempt; delete set ip sluice outcome_attempts; add set ip sluice outcome_attempts { type ipv4_addr . inet_proto . inet_service; }",
		"everything gone":  "flush ruleset",
		"foreign elements": "add element ip sluice outcome_refused { 10.244.0.77 . tcp . 1 }",
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestEnv(t, 1)
			p := d.apply(service(frontend(countedService, "1")))
			d.askTimes(2)
			d.mustNFT(damage)
			if _, err := d.b.ReadOutcomes(context.Background()); err == nil && name != "foreign elements" && name != "chain changed" && name != "foreign rule" && name != "hook deleted" {
				t.Error("counters are read although an endpoint has none")
			}
			d.mustApply(p, nil)
			d.expectPlan(p)
			before, ok := d.counters(1)
			if !ok || before.Attempts > 2 || before.Answered > 2 {
				t.Fatalf("after the repair: %+v, %v", before, ok)
			}
			d.askTimes(5)
			after, _ := d.counters(1)
			if after.Attempts-before.Attempts != 5 || after.Answered-before.Answered != 5 {
				t.Errorf("five connections: before %+v, after %+v", before, after)
			}
		})
	}
}

// TestRetransmissions states what counts: a SYN that is sent again is the same attempt, and a SYN-ACK is one more answer.
func TestRetransmissions(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(service(frontend(countedService, "1")))
	block := func(h *testnet.Host, flags string) (unblock func()) {
		if out, err := h.Run("table inet block { chain in { type filter hook input priority 0; tcp flags & (syn|ack) == "+flags+" drop; }\n}\n", "nft", "-f", "-"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		return func() {
			if out, err := h.Run("", "nft", "delete", "table", "inet", "block"); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}
	}
	await := func(what string, done func(c backend.OutcomeCounters, sent int) bool, h *testnet.Host) backend.OutcomeCounters {
		t.Helper()
		var c backend.OutcomeCounters
		testenv.Eventually(t, what, func() bool {
			sent := d.synRetransmits(h) // first: what was sent before is counted
			c, _ = d.counters(1)
			return done(c, sent)
		}, func() string { return fmt.Sprintf("%+v", c) })
		return c
	}
	dial := func() chan error {
		result := make(chan error, 1)
		go func() {
			_, err := d.client.Ask("tcp", netip.MustParseAddrPort("10.96.0.10:80"), timeout)
			result <- err
		}()
		return result
	}
	unblock := block(d.pods[0], "syn") // the endpoint is silent
	first := dial()
	c := await("no SYN was sent again", func(_ backend.OutcomeCounters, sent int) bool { return sent > 0 }, d.client)
	if c != (backend.OutcomeCounters{Attempts: 1}) {
		t.Errorf("after a retransmitted SYN: %+v", c)
	}
	unblock()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if c, _ = d.counters(1); c != (backend.OutcomeCounters{Attempts: 1, Answered: 1}) {
		t.Errorf("after the answer to a retransmitted SYN: %+v", c)
	}
	unblock = block(d.client, "syn|ack") // the client does not hear the endpoint
	second := dial()
	c = await("no SYN-ACK was sent again", func(c backend.OutcomeCounters, _ int) bool { return c.Answered > 2 }, d.client)
	if c.Attempts != 2 || c.Refused != 0 {
		t.Errorf("after a retransmitted SYN-ACK: %+v", c)
	}
	unblock()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestEndpointRestarts follows an endpoint through the states of a reboot.
func TestEndpointRestarts(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(service(strings.ReplaceAll(frontend(countedService, "1"), ":9000", ":9001")))
	at := netip.AddrPortFrom(d.pods[0].Addr(node4), 9001)
	endpoint := model.EndpointKey{Addr: at, Protocol: model.TCP}
	to := netip.MustParseAddrPort("10.96.0.10:80")
	want := backend.OutcomeCounters{}
	expect := func(state string) {
		t.Helper()
		testenv.Succeeds(t, state, func() error { // packets may still be on their way
			all, err := d.b.ReadOutcomes(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if all[endpoint] != want {
				return fmt.Errorf("got %+v, want %+v", all[endpoint], want)
			}
			return nil
		})
	}
	const each = 20
	dialer := testbed.NewDialer(d.client)
	for round := range 3 {
		s, err := d.pods[0].Serve("tcp", at, "p1")
		if err != nil {
			t.Fatal(err)
		}
		for range each {
			d.ask(d.client, "tcp", to.String())
		}
		want.Attempts, want.Answered = want.Attempts+each, want.Answered+each
		expect("listening")
		s.Close()
		for range each {
			if _, err := d.client.Ask("tcp", to, timeout); !testnet.Refused(err) {
				t.Fatalf("a closed port: %v", err)
			}
		}
		want.Attempts, want.Refused = want.Attempts+each, want.Refused+each
		expect("closed")
		if out, err := d.pods[0].Run("table inet reboot { chain in { type filter hook input priority 0; policy drop; }\n}\n", "nft", "-f", "-"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if err := dialer.Attempt(to, each); err != nil {
			t.Fatal(err)
		}
		want.Attempts += each
		expect(fmt.Sprintf("silent, round %d", round))
		if out, err := d.pods[0].Run("", "nft", "delete", "table", "inet", "reboot"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
}

// TestUnreachableHostIsRefusedOnce: SYNs that are sent again are refused again.
func TestUnreachableHostIsRefusedOnce(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(service(frontend(countedService, "1"), frontend("[fd00:10:96::a]:80/TCP ClusterIP masquerade=never outcomes=counted", "1")))
	if out, err := d.pods[0].Run("table inet away { chain in { type filter hook input priority 0; reject with icmpx host-unreachable; }\n}\n", "nft", "-f", "-"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		before := d.synRetransmits(d.client)
		done := make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		go func() {
			defer close(done)
			if c, err := d.client.Dial(ctx, "tcp", netip.MustParseAddrPort(to)); err == nil {
				c.Close()
			}
		}()
		testenv.Eventually(t, "another SYN", func() bool {
			select {
			case <-done: // the client learned of it with the first SYN
				return true
			default:
				return d.synRetransmits(d.client) != before
			}
		})
		cancel()
		<-done
		all, err := d.b.ReadOutcomes(context.Background())
		e := model.EndpointKey{Addr: netip.AddrPortFrom(d.pods[0].Addr(netip.MustParseAddrPort(to).Addr()), 9000), Protocol: model.TCP}
		if c := all[e]; err != nil || c != (backend.OutcomeCounters{Attempts: 1, Refused: 1}) {
			t.Errorf("%s: got %+v, %v", to, c, err)
		}
	}
}

// TestCountingComesAndGoesWithoutLosingConnections switches counting on and off under load, and checks that it counts in
// between.
func TestCountingComesAndGoesWithoutLosingConnections(t *testing.T) {
	d := newTestEnv(t, 4)
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	plans := [2]*plan.Plan{parse(t, service(frontend(plainService, "1 2"))), parse(t, service(frontend(countedService, "1 2 3")))}
	d.mustApply(plans[0], nil)
	stop := d.connectRepeatedly("10.96.0.10:80", 0)
	for i := range rounds {
		prev, next := plans[i%2], plans[(i+1)%2]
		d.mustApply(next, plan.Diff(prev, next))
		if i%2 == 1 {
			continue
		}
		testenv.Eventually(t, fmt.Sprintf("round %d: connections are counted", i), func() bool {
			sum := backend.OutcomeCounters{}
			for pod := 1; pod <= 3; pod++ {
				c, ok := d.counters(pod)
				if !ok {
					t.Fatalf("round %d: p%d has no counters", i, pod)
				}
				sum.Attempts, sum.Answered, sum.Refused = sum.Attempts+c.Attempts, sum.Answered+c.Answered, sum.Refused+c.Refused
			}
			if sum.Refused > 0 {
				t.Fatalf("round %d: %+v", i, sum)
			}
			return sum.Attempts > 0 && sum.Answered > 0
		})
	}
	t.Logf("%d connections", stop(int64(rounds)))
	d.expectPlan(plans[rounds%2])
}
