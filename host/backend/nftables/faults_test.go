package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/sluice-proxy/sluice/host/util/nfnl/nfnltest"
)

// isTransaction reports whether a datagram is a transaction.
func isTransaction(b []byte) bool {
	_, transaction := nfnltest.Messages(b)
	return transaction
}

var errKilled = errors.New("the process is gone")

// crashing forwards some transactions, then nothing more, like a process after SIGKILL.
type crashing struct {
	nfnl.Transport
	transactions int
	dead         bool
}

func (k *crashing) Send(b []byte) error {
	if isTransaction(b) {
		k.dead = k.dead || k.transactions == 0
		k.transactions--
	}
	if k.dead {
		return errKilled
	}
	return k.Transport.Send(b)
}

// expectOldOrNew checks that every frontend is as in one of two plans.
func (d *testEnv) expectOldOrNew(what string, was, shall *plan.Plan) {
	d.Helper()
	b := d.open()
	defer b.Close()
	was = plan.Normalize(was, b.Caps())
	shall = plan.Normalize(shall, b.Caps())
	got, err := b.Read(context.Background())
	if err != nil {
		d.Fatalf("%s: %v", what, err)
	}
	keys := map[plan.Key]bool{}
	for _, p := range []*plan.Plan{was, shall, got} {
		for k := range p.Frontends {
			keys[k] = true
		}
	}
	same := func(a, b *plan.Frontend) bool { return a == b || a != nil && b != nil && a.Equal(b) }
	for _, k := range slices.SortedFunc(maps.Keys(keys), plan.Key.Compare) {
		if g := got.Frontends[k]; !same(g, was.Frontends[k]) && !same(g, shall.Frontends[k]) {
			d.Fatalf("%s: %s is neither the old nor the new one:\n%s\nold:\n%s\nnew:\n%s", what, k,
				formatFrontend(g), formatFrontend(was.Frontends[k]), formatFrontend(shall.Frontends[k]))
		}
	}
}

func formatFrontend(f *plan.Frontend) string {
	if f == nil {
		return "not there"
	}
	return plan.FormatFrontend(f)
}

// elements counts the kernel's elements by set. Numbered sets count as one, as the numbers depend on history.
func (d *testEnv) elements() map[string]int {
	d.Helper()
	b := d.open()
	defer b.Close()
	out := map[string]int{}
	for _, t := range b.tables {
		if _, err := t.load(); err != nil {
			d.Fatal(err)
		}
		for _, name := range t.existing() {
			s := t.byName[name]
			list, err := t.dumpSettled(s)
			if err != nil {
				d.Fatal(err)
			}
			base := strings.TrimRight(name, "0123456789")
			if base == "affinity_endpoints_" || base == "affinity_targets_" {
				name = base
			}
			if len(list) > 0 && s.flags&unix.NFT_SET_TIMEOUT == 0 {
				out[t.String()+" "+name] += len(list)
			}
		}
	}
	return out
}

// TestCrashBetweenTransactionsInterruptsNothing stops the writer after each of its transactions. The kernel commits a
// transaction completely or not at all, so these are all the states that a crash can leave.
func TestCrashBetweenTransactionsInterruptsNothing(t *testing.T) {
	d, fresh := newTestEnv(t, 4), newTestEnv(t, 0)
	var done atomic.Bool
	var connections atomic.Int64
	loaded := make(chan struct{})
	states, enough, seeds, step := 0, 24, uint64(2), 1
	if testing.Short() {
		enough, seeds, step = 8, 1, 3
	}
	for seed := range seeds {
		g := testgen.NewPlans(seed+1, testgen.PlanOptions{Ports: 15, MaxWeight: 90})
		plans := [2]*plan.Plan{g.Plan()}
		plans[1] = plans[0]
		for range 40 {
			plans[1] = g.Next(plans[1])
		}
		if seed == 1 {
			plans[1] = g.Plan() // little in common
		}
		for i, pool := range []string{"1 2", "1*3 3"} {
			served := parse(t, service(frontend("10.97.0.10:80/TCP ClusterIP masquerade=never", pool)))
			plans[i].Global = served.Global
			for k, f := range served.Frontends {
				plans[i].Frontends[k] = f
			}
			plans[i] = plan.Fit(plans[i], d.b.Caps())
		}
		d.restart()
		d.mustApply(plans[0], nil)
		if seed == 0 {
			go func() {
				defer close(loaded)
				for !done.Load() {
					a, err := d.client.Ask("tcp", netip.MustParseAddrPort("10.97.0.10:80"), timeout)
					if err != nil || a.Server == "p4" {
						t.Errorf("connection: %q, %v", a.Server, err)
						return
					}
					connections.Add(1)
					time.Sleep(2 * time.Millisecond) // pace of a client
				}
			}()
		}
		for _, whole := range []bool{false, true} {
			for n := 0; ; n += step {
				what := fmt.Sprintf("seed %d, whole %v, killed after %d transactions", seed, whole, n)
				b := d.openSmall(nil) // more transactions for a plan of this size
				if _, err := b.Apply(context.Background(), plans[0], nil); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				k := &crashing{Transport: b.conn.Transport, transactions: n}
				b.conn.Transport = k
				delta := plan.Diff(plans[0], plans[1])
				if whole {
					delta = nil
				}
				_, err := b.Apply(context.Background(), plans[1], delta)
				b.Close()
				if k.dead != errors.Is(err, errKilled) || !k.dead && err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				d.expectOldOrNew(what, plans[0], plans[1])
				d.restart()
				d.mustApply(plans[1], nil)
				d.expectPlan(plans[1])
				if r, err := d.b.Apply(context.Background(), plans[1], nil); err != nil || r.Messages > 0 {
					t.Fatalf("%s: second Apply: %+v, %v", what, r, err)
				}
				states++
				if t.Failed() || !k.dead {
					break
				}
			}
		}
		fresh.mustApply(&plan.Plan{}, nil)
		if _, err := Cleanup(context.Background(), fresh.lab.Node.Fd()); err != nil {
			t.Fatal(err)
		}
		fresh.mustApply(plans[1], nil)
		got, want := d.elements(), fresh.elements()
		for name, n := range got {
			if n != want[name] {
				t.Errorf("seed %d: %d elements in %s, %d in a fresh kernel", seed, n, name, want[name])
			}
		}
	}
	testenv.Eventually(t, "100 connections", func() bool { return connections.Load() >= 100 || t.Failed() })
	done.Store(true)
	<-loaded
	t.Logf("%d states, %d connections meanwhile", states, connections.Load())
	if states < enough || connections.Load() < 100 {
		t.Errorf("only %d states and %d connections", states, connections.Load())
	}
}

// TestCrashDuringChangeOfTheMasqueradeBit: the bit is in the rules and in a set, which have to agree in every state.
func TestCrashDuringChangeOfTheMasqueradeBit(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	text := service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=always", "1 2"))
	plans := [2]*plan.Plan{parse(t, text), parse(t, strings.Replace(text, "0x4000", "0x8000", 1))}
	for n := 0; ; n++ {
		b := d.open()
		if _, err := b.Apply(context.Background(), plans[0], nil); err != nil {
			t.Fatal(err)
		}
		c := &crashing{Transport: b.conn.Transport, transactions: n}
		b.conn.Transport = c
		_, err := b.Apply(context.Background(), plans[1], plan.Diff(plans[0], plans[1]))
		b.Close()
		if c.dead != errors.Is(err, errKilled) || !c.dead && err != nil {
			t.Fatal(err)
		}
		d.expectOldOrNew(fmt.Sprintf("after %d transactions", n), plans[0], plans[1])
		if !c.dead {
			break
		}
	}
}

// Kinds of faults.
const (
	refusedByKernel = "refused by the kernel"
	sendFails       = "sending fails"
	receiveFails    = "committed, and receiving the answer fails"
	replyLost       = "committed, and no answer comes"
)

// faultyTransport fails once: at a message, counted over all datagrams, for refusedByKernel, otherwise at a datagram.
type faultyTransport struct {
	nfnl.Transport
	how      string
	errno    unix.Errno
	at       int
	messages int
	sends    int
	fired    bool
	reply    []byte // replaces the kernel's
	failing  bool   // the next Receive fails
	mute     bool   // until the next Send
}

func (f *faultyTransport) Send(b []byte) error {
	messages, _ := nfnltest.Messages(b)
	f.mute, f.reply = false, nil
	first := f.messages
	f.messages += len(messages)
	f.sends++
	if f.how == refusedByKernel {
		if f.fired || f.at < first || f.at >= f.messages {
			return f.Transport.Send(b)
		}
		f.fired, f.mute = true, true
		seq := binary.NativeEndian.Uint32(b[messages[f.at-first]+8:])
		f.reply = netlinkMessage(unix.NLMSG_ERROR, seq, append(
			binary.NativeEndian.AppendUint32(nil, uint32(-int32(f.errno))), make([]byte, unix.NLMSG_HDRLEN)...))
		return nil
	}
	if f.fired || f.sends-1 != f.at {
		return f.Transport.Send(b)
	}
	f.fired = true
	if f.how == sendFails {
		return f.errno
	}
	f.failing, f.mute = f.how == receiveFails, f.how == replyLost
	return f.Transport.Send(b)
}

func (f *faultyTransport) Receive(buf []byte) (int, error) {
	switch {
	case f.reply != nil:
		n := copy(buf, f.reply)
		f.reply = nil
		return n, nil
	case f.failing:
		f.failing = false
		return 0, f.errno
	case f.mute:
		return 0, unix.EAGAIN
	}
	return f.Transport.Receive(buf)
}

var faultErrnos = []unix.Errno{unix.EINTR, unix.EAGAIN, unix.ENOBUFS, unix.EBUSY, unix.ENOENT, unix.EEXIST, unix.EPERM, unix.ENOMEM}

// TestApplyConvergesAfterEveryErrno fails each message of a change, including reads.
func TestApplyConvergesAfterEveryErrno(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	old := parse(t, service(
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity=1h", "1 2"),
		"service shop/api\n", frontend("10.96.0.11:80/TCP ClusterIP masquerade=outside", "1*2 2*3"),
		frontend("10.96.0.12:80/TCP ClusterIP masquerade=outside", "reject")))
	next := parse(t, service(
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity=1h", "2 3 4"),
		"service shop/api\n", frontend("10.96.0.11:80/TCP ClusterIP masquerade=outside", "reject"),
		frontend("10.96.0.12:80/TCP ClusterIP masquerade=always", "1*5 3"),
		frontend("10.96.0.13:80/UDP ClusterIP masquerade=outside", "4")))
	tried, retried := 0, map[int]int{}
	one := func(whole bool, f *faultyTransport) {
		d.mustApply(old, nil)
		delta := plan.Diff(old, next)
		if whole {
			delta = nil
		}
		what := fmt.Sprintf("whole %v: %s: %v at %d", whole, f.how, f.errno, f.at)
		f.Transport = d.b.conn.Transport
		d.b.conn.Transport = f
		for retries := 0; ; retries++ {
			_, err := d.b.Apply(context.Background(), next, delta)
			if err == nil {
				d.b.conn.Transport = f.Transport
				if f.fired {
					tried++
					retried[retries]++
				}
				break
			}
			d.expectOldOrNew(what, old, next)
			if retries == 2 {
				t.Fatalf("%s: still failing: %v", what, err)
			}
			if !strings.HasPrefix(err.Error(), "nftables: ") {
				t.Errorf("%s: the error does not say what failed: %v", what, err)
			}
			delta = nil // like the engine
		}
		d.expectPlan(next)
	}
	step, enough := 1, 300
	if testing.Short() {
		step, enough = 5, 50
	}
	for _, whole := range []bool{false, true} {
		for i := 0; ; i += step { // messages
			errnos := faultErrnos
			if whole || testing.Short() { // there are many: one errno for each
				errnos = faultErrnos[i%len(faultErrnos):][:1]
			}
			fired := false
			for _, errno := range errnos {
				f := &faultyTransport{how: refusedByKernel, errno: errno, at: i}
				one(whole, f)
				fired = f.fired
			}
			if !fired {
				break
			}
		}
		for _, how := range []string{sendFails, receiveFails, replyLost} {
			for i := 0; ; i += step { // datagrams
				errnos := faultErrnos
				if whole || how == replyLost || testing.Short() {
					errnos = faultErrnos[i%len(faultErrnos):][:1]
				}
				fired := false
				for _, errno := range errnos {
					f := &faultyTransport{how: how, errno: errno, at: i}
					one(whole, f)
					fired = f.fired
				}
				if !fired {
					break
				}
			}
		}
	}
	t.Logf("%d faults; how many needed how many retries: %v", tried, retried)
	if tried < enough || retried[1] < enough*2/3 {
		t.Errorf("too few faults")
	}
}
