package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// openSmall opens a backend with transactions so small that filling a table takes several.
func (d *testEnv) openSmall(c Balancing) *Backend {
	d.Helper()
	return d.openWith(Options{Balancing: c, SendBuffer: 100 << 10})
}

// handOff returns a HandOff without IPVS: the tests look only at the tables.
func (d *testEnv) handOff() *HandOff {
	return &HandOff{
		Capabilities: d.b.Caps(),
		MarkMask:     0xffff0000,
		PoolMark: func(f *plan.Frontend, outside bool) uint32 {
			if !outside && (f.Outside != nil || f.Key.IsNodePort()) {
				return uint32(f.Key.Port) << 16
			}
			return 0
		},
		GuardedVIPs: func() map[netip.Addr]bool { return map[netip.Addr]bool{netip.MustParseAddr("10.97.0.10"): true} },
	}
}

// connectRepeatedly connects to a frontend from two hosts, with pauses, until stop is called and there were at least
// that many connections. stop returns their number. None may fail, and no SYN may stay unanswered.
func (d *testEnv) connectRepeatedly(to string, pause time.Duration) (stop func(atLeast int64) int64) {
	d.Helper()
	var done atomic.Bool
	var n atomic.Int64
	var all sync.WaitGroup
	hosts := []*testnet.Host{d.client, d.pods[0]}
	before := make([]int, len(hosts))
	for i, h := range hosts {
		before[i] = d.synRetransmits(h)
		all.Go(func() {
			for !done.Load() && !d.Failed() {
				if a, err := h.Ask("tcp", netip.MustParseAddrPort(to), timeout); err != nil || a.Server == "p4" {
					d.Errorf("%s asks %s: %q, %v", h.Name, to, a.Server, err)
				}
				n.Add(1)
				time.Sleep(pause) // pace of a client
			}
		})
	}
	return func(atLeast int64) int64 {
		d.Helper()
		defer all.Wait()
		defer done.Store(true)
		testenv.Eventually(d, fmt.Sprint(atLeast, " connections"), func() bool { return n.Load() >= atLeast || d.Failed() })
		done.Store(true)
		all.Wait()
		for i, h := range hosts {
			if more := d.synRetransmits(h) - before[i]; more > 0 {
				d.Errorf("%s: %d SYNs got no answer, of those of %d connections", h.Name, more, n.Load())
			}
		}
		return n.Load()
	}
}

// synRetransmits returns how many SYNs a host has retransmitted.
func (d *testEnv) synRetransmits(h *testnet.Host) (n int) {
	d.Helper()
	if err := h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j, name := range names {
				if name == "TCPSynRetrans" {
					n, err = strconv.Atoi(values[j])
					return err
				}
			}
		}
		return errors.New("no TCPSynRetrans in /proc/net/netstat")
	}); err != nil {
		d.Fatal(err)
	}
	return n
}

// addForeignChain changes our tables in a way that does not affect connections.
func (d *testEnv) addForeignChain() {
	d.Helper()
	if out, err := d.nft("add chain ip sluice extra\nadd chain ip6 sluice extra\n", "-f", "-"); err != nil {
		d.Fatalf("%s: %v", out, err)
	}
}

// tables lists all tables on the node.
func (d *testEnv) tables() string {
	d.Helper()
	out, err := d.nft("", "list", "tables")
	if err != nil {
		d.Fatal(err)
	}
	return strings.Join(strings.Split(strings.TrimSpace(out), "\n"), ", ")
}

const ourTables = "table ip sluice, table ip6 sluice"

// largeTestPlan returns a plan that takes openSmall's backend several transactions in both families, with one frontend
// that has real endpoints.
func largeTestPlan(t testing.TB, pool string) *plan.Plan {
	text := service(
		frontend("10.97.0.10:80/TCP ClusterIP masquerade=never", pool),
		frontend("[fd00:10:97::a]:80/TCP ClusterIP masquerade=never", pool))
	p := parse(t, text)
	for _, f := range cluster(50, 25).Frontends {
		p.Frontends[f.Key] = f
	}
	return p
}

func TestRepeatedReplacementLosesNoConnection(t *testing.T) {
	d := newTestEnv(t, 4)
	b := d.openSmall(nil)
	defer b.Close()
	plans := [2]*plan.Plan{largeTestPlan(t, "1 2"), largeTestPlan(t, "2*2 3")}
	if _, err := b.Apply(context.Background(), plans[0], nil); err != nil {
		t.Fatal(err)
	}
	rounds := 25
	if testing.Short() {
		rounds = 4
	}
	if n, err := strconv.Atoi(os.Getenv("SLUICE_HANDOVERS")); err == nil {
		rounds = n
	}
	stop := d.connectRepeatedly("10.97.0.10:80", 0)
	for i := range rounds {
		d.addForeignChain()
		r, err := b.Apply(context.Background(), plans[(i+1)%2], nil)
		if err != nil || r.Transactions < 12 {
			t.Fatalf("%+v, %v", r, err)
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d replacements of two tables, %d connections meanwhile", rounds, stop(int64(rounds)))
	d.expectPlan(plans[rounds%2])
	if got := d.tables(); got != ourTables {
		t.Errorf("there are %s", got)
	}
}

// TestCrashDuringReplacement stops the writer after each of its transactions, and its successor too.
func TestCrashDuringReplacement(t *testing.T) {
	d := newTestEnv(t, 4)
	handOff := d.handOff()
	plans := [2]*plan.Plan{largeTestPlan(t, "1 2"), largeTestPlan(t, "2*2 3")}
	for _, c := range []struct {
		what     string
		from, to Balancing
		damage   bool
	}{
		{what: "a changed table", damage: true},
		{what: "a table of mode ipvs, changed", from: handOff, to: handOff, damage: true},
		{what: "from mode nftables to mode ipvs", to: handOff},
		{what: "from mode ipvs to mode nftables", from: handOff},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.from != nil {
				testenv.OnceForAllKernels(t)
			}
			d := &testEnv{TB: t, lab: d.lab, pods: d.pods, client: d.client, clock: d.clock}
			first, states := true, 0
			stop := func(int64) int64 { return 0 }
			for n := 0; ; n++ {
				what := fmt.Sprintf("killed after %d transactions", n)
				before := d.openSmall(c.from)
				if _, err := before.Apply(context.Background(), plans[0], nil); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				before.Close()
				if first && c.from == nil && c.to == nil {
					stop = d.connectRepeatedly("10.97.0.10:80", 5*time.Millisecond)
				}
				first = false
				if c.damage {
					d.addForeignChain()
				}
				dead := d.applyKilled(what, c.to, n, plans[1])
				d.expectNewOrForeign(what, c.to, plans[1])
				if dead {
					again := n * 5 % 23
					what += fmt.Sprintf(", its successor after %d", again)
					d.applyKilled(what, c.to, again, plans[1])
					d.expectNewOrForeign(what, c.to, plans[1])
				}
				last := d.openSmall(c.to)
				if _, err := last.Apply(context.Background(), plans[1], nil); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if r, err := last.Apply(context.Background(), plans[1], nil); err != nil || r.Messages > 0 {
					t.Fatalf("%s: second Apply: %+v, %v", what, r, err)
				}
				d.expectNewOrForeign(what, c.to, plans[1])
				last.Close()
				if got := d.tables(); got != ourTables {
					t.Fatalf("%s: there are %s", what, got)
				}
				states++
				if t.Failed() || !dead {
					break
				}
				if c.from != nil || c.to != nil {
					n++ // the other states are much alike
				}
				if testing.Short() {
					n += 2
				}
			}
			t.Logf("%d states, %d connections meanwhile", states, stop(0))
			if states < 5 {
				t.Errorf("only %d states", states)
			}
		})
	}
}

// applyKilled applies a plan and crashes after n transactions. It reports whether there were as many.
func (d *testEnv) applyKilled(what string, c Balancing, n int, p *plan.Plan) (dead bool) {
	d.Helper()
	b := d.openSmall(c)
	defer b.Close()
	k := &crashing{Transport: b.conn.Transport, transactions: n}
	b.conn.Transport = k
	if _, err := b.Apply(context.Background(), p, nil); k.dead != errors.Is(err, errKilled) || !k.dead && err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	return k.dead
}

// expectNewOrForeign checks that the forwarding table is either the one to be replaced or has the whole plan.
func (d *testEnv) expectNewOrForeign(what string, c Balancing, p *plan.Plan) {
	d.Helper()
	b := d.openSmall(c)
	defer b.Close()
	got, _, guarded, err := b.ReadMarks(context.Background())
	if IsForeignTable(err) {
		return
	}
	if c != nil && len(guarded) != 1 {
		d.Fatalf("%s: guarded %v", what, guarded)
	}
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	want := plan.Normalize(p, b.Caps())
	if c != nil { // without endpoints
		for _, q := range []*plan.Plan{want, got} {
			for k, f := range q.Frontends {
				g := *f
				g.Pool.Endpoints = nil
				q.Frontends[k] = &g
			}
		}
	}
	// Each family's table is replaced on its own.
	if diff := planDiff(want, got); diff != "" {
		d.Fatalf("%s: what forwards is not the plan (-want +got):\n%s", what, diff)
	}
}

func TestCleanupDuringReplacementLeavesNothing(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	p := largeTestPlan(t, "1 2")
	for n := 0; ; n += 3 {
		b := d.openSmall(nil)
		if _, err := b.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		b.Close()
		d.addForeignChain()
		dead := d.applyKilled("cleanup", nil, n, p)
		there := strings.Count(d.tables(), "table")
		removed, err := Cleanup(context.Background(), d.lab.Node.Fd())
		if err != nil || len(removed) != there {
			t.Fatalf("killed after %d transactions: removed %v of %d tables, %v", n, removed, there, err)
		}
		if got := d.tables(); got != "" {
			t.Fatalf("killed after %d transactions: there are %s", n, got)
		}
		if !dead {
			return
		}
	}
}

// TestReplacementConvergesAfterEveryErrno is TestApplyConvergesAfterEveryErrno for the replacement of a table.
func TestReplacementConvergesAfterEveryErrno(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 4)
	plans := [2]*plan.Plan{
		parse(t, service(frontend("10.97.0.10:80/TCP ClusterIP masquerade=never", "1 2"))),
		parse(t, service(frontend("10.97.0.10:80/TCP ClusterIP masquerade=never", "2*2 3"))),
	}
	d.mustApply(plans[0], nil)
	stop := d.connectRepeatedly("10.97.0.10:80", 5*time.Millisecond)
	tried := 0
	for _, how := range []string{refusedByKernel, sendFails, receiveFails, replyLost} {
		step := 3
		if how == refusedByKernel { // there are many messages
			step = 7
		}
		if testing.Short() {
			step *= 3
		}
		for i := 0; ; i += step {
			d.mustApply(plans[0], nil)
			d.addForeignChain()
			f := &faultyTransport{Transport: d.b.conn.Transport, how: how, errno: faultErrnos[tried%len(faultErrnos)], at: i}
			what := fmt.Sprintf("%s: %v at %d", how, f.errno, i)
			d.b.conn.Transport = f
			for retries := 0; ; retries++ {
				_, err := d.b.Apply(context.Background(), plans[1], nil)
				if err == nil {
					break
				}
				if retries == 2 {
					t.Fatalf("%s: still failing: %v", what, err)
				}
				if !strings.HasPrefix(err.Error(), "nftables: ") {
					t.Errorf("%s: the error does not say what failed: %v", what, err)
				}
				d.expectNewOrForeign(what, nil, plans[1])
			}
			d.b.conn.Transport = f.Transport
			d.expectPlan(plans[1])
			if !f.fired || t.Failed() {
				break
			}
			tried++
		}
	}
	t.Logf("%d faults, %d connections meanwhile", tried, stop(100))
	if got := d.tables(); got != ourTables || tried < 20 {
		t.Errorf("there are %s, after %d faults", got, tried)
	}
}

// TestReplacementSurvivesRulesetFlush deletes all tables during a replacement.
func TestReplacementSurvivesRulesetFlush(t *testing.T) {
	d := newTestEnv(t, 2)
	p := largeTestPlan(t, "1 2")
	for n := 1; ; n += 4 {
		b := d.openSmall(nil)
		if _, err := b.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		d.addForeignChain()
		f := &flushAfter{Transport: b.conn.Transport, left: n, flush: func() {
			if out, err := d.nft("flush ruleset\n", "-f", "-"); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}}
		b.conn.Transport = f
		_, err := b.Apply(context.Background(), p, nil)
		b.conn.Transport = f.Transport
		if err != nil {
			if !errors.Is(err, unix.ENOENT) {
				t.Errorf("flushed after %d transactions: %v", n, err)
			}
			_, err = b.Apply(context.Background(), p, nil)
		} else if f.left < 0 { // after the last one, and nothing watches here
			_, err = b.Apply(context.Background(), p, nil)
		}
		if err != nil {
			t.Fatalf("flushed after %d transactions: %v", n, err)
		}
		d.expectPlan(p)
		d.ask(d.client, "tcp", "10.97.0.10:80")
		b.Close()
		if f.left >= 0 {
			return
		}
	}
}

// flushAfter calls flush after a number of transactions.
type flushAfter struct {
	nfnl.Transport
	left  int
	flush func()
}

func (f *flushAfter) Send(b []byte) error {
	err := f.Transport.Send(b)
	if isTransaction(b) {
		if f.left--; f.left == 0 {
			f.left--
			f.flush()
		}
	}
	return err
}
