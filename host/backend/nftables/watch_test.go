package nftables

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// changeRecorder records what Watch reports.
type changeRecorder struct {
	mu   sync.Mutex
	list []backend.ExternalChange
}

func (e *changeRecorder) record(f backend.ExternalChange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, f)
}

func (e *changeRecorder) drain() []backend.ExternalChange {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.list
	e.list = nil
	return l
}

// TestStopOfTheWatchDoesNotWaitForItsSocket: somebody still uses it here; on a busy node it is the kernel.
func TestStopOfTheWatchDoesNotWaitForItsSocket(t *testing.T) {
	d := newTestEnv(t, 0)
	stop, err := d.b.Watch(func(backend.ExternalChange) {})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := d.b.watcher.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	used, stopped, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		ended <- socket.Control(func(uintptr) {
			used <- true
			<-stopped
		})
	}()
	<-used
	stop()
	close(stopped)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// watch watches until the test ends.
func (d *testEnv) watch() *changeRecorder {
	d.Helper()
	e := &changeRecorder{}
	stop, err := d.b.Watch(e.record)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(stop)
	return e
}

// expectChange waits for an external change.
func (d *testEnv) expectChange(e *changeRecorder) backend.ExternalChange {
	d.Helper()
	var l []backend.ExternalChange
	testenv.Eventually(d, "a change is reported", func() bool { l = e.drain(); return len(l) > 0 })
	return l[0]
}

// expectNoChange checks that no change was reported and none was missed.
func (d *testEnv) expectNoChange(e *changeRecorder, what string) {
	d.Helper()
	time.Sleep(50 * time.Millisecond) // nothing happens
	if l := e.drain(); len(l) > 0 {
		d.Errorf("%s: reported %+v", what, l)
	}
	for range 3 {
		if moved, err := d.b.Drifted(context.Background()); moved || err != nil {
			d.Errorf("%s: Drifted returned %v, %v", what, moved, err)
		}
	}
}

func (d *testEnv) mustNFT(script string) {
	d.Helper()
	if out, err := d.nft(script, "-f", "-"); err != nil {
		d.Fatalf("nft: %v\n%s\n%s", err, out, script)
	}
}

const watchedPlan = "1 2 3"

func TestExternalChangesAreReportedAndRepaired(t *testing.T) {
	d := newTestEnv(t, 4)
	e := d.watch()
	p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", watchedPlan),
		frontend("[fd00:10:96::10]:80/TCP ClusterIP masquerade=never", "reject")))
	d.expectNoChange(e, "our own writes")
	for name, c := range map[string]struct{ script, want string }{
		"table deleted":   {"delete table ip sluice", "table ip sluice deleted"},
		"IPv6 deleted":    {"delete table ip6 sluice", "table ip6 sluice deleted"},
		"all flushed":     {"flush ruleset", "table ip sluice deleted"},
		"table replaced":  {"delete table ip sluice\ntable ip sluice { set x { type ipv4_addr; }; }", "table ip sluice written"},
		"slot deleted":    {"delete element ip sluice slots { 10.96.0.10 . tcp . 80 . 1 }", "element deleted in set ip sluice slots"},
		"slots flushed":   {"flush map ip sluice slots", "element deleted in set ip sluice slots"},
		"set flushed":     {"flush set ip sluice frontends", "element deleted in set ip sluice frontends"},
		"foreign slot":    {"add element ip sluice slots { 10.96.0.10 . tcp . 80 . 3 : 10.244.0.4 . 9000 }", "element added to set ip sluice slots"},
		"foreign element": {"add element ip sluice cluster_ips { 10.96.0.99 }", "element added to set ip sluice cluster_ips"},
		"foreign set":     {"add set ip sluice mine { type ipv4_addr; }", "set ip sluice mine written"},
		"foreign rule":    {"insert rule ip sluice services drop", "rule written in chain ip sluice services"},
		"foreign chain":   {"add chain ip sluice mine", "chain ip sluice mine written"},
		"rules flushed":   {"flush chain ip sluice pools", "rule deleted in chain ip sluice pools"},
		"beside another's": {"add table ip a\nadd set ip a s { type ipv4_addr; elements = { 1.1.1.1, 2.2.2.2 }; }\n" +
			"flush set ip sluice frontends", "element deleted in set ip sluice frontends"},
	} {
		t.Run(name, func(t *testing.T) {
			d.mustNFT(c.script)
			f := d.expectChange(e)
			if !strings.Contains(f.Object, c.want) || !strings.HasPrefix(f.Process, "nft (pid ") || f.Count < 1 {
				t.Errorf("got %+v, want %q by nft", f, c.want)
			}
			d.mustApply(p, nil)
			d.expectPlan(p)
			if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r.Messages != 0 {
				t.Errorf("the second repair: %+v, %v", r, err)
			}
			if a := d.ask(d.client, "tcp", "10.96.0.10:80"); a.Server == "p4" {
				t.Errorf("%s answers", a.Server)
			}
			d.expectNoChange(e, "the repair")
		})
	}
}

// TestChangesBeforeTheWatchAreReported: the engine watches once the plan is programmed.
func TestChangesBeforeTheWatchAreReported(t *testing.T) {
	d := newTestEnv(t, 0)
	p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.mustApply(p, nil)
	d.mustNFT("flush set ip sluice frontends")
	e := d.watch()
	d.expectChange(e)
	d.mustApply(p, nil)
	d.expectPlan(p)
	d.expectNoChange(e, "the repair")
}

func TestOtherTablesOwnWritesAndAffinityAreNotReported(t *testing.T) {
	d := newTestEnv(t, 3)
	e := d.watch()
	plans := []*plan.Plan{
		parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity=1h", "1 2 3"))),
		parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity=1h", "2*3 3"))),
	}
	d.mustApply(plans[0], nil)
	d.expectNoChange(e, "the first apply")

	other := "add table inet sluice\nadd table ip other\nadd set ip other sluice { type ipv4_addr; }\n"
	before := d.b.externalCommits.Load()
	noted := func(n int64) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprint(n, " transactions of other processes"), func() bool { return int64(d.b.externalCommits.Load()-before) >= n })
		if got := int64(d.b.externalCommits.Load() - before); got != n {
			t.Errorf("counted %d transactions of other processes, want %d", got, n)
		}
	}
	d.mustNFT(other)
	noted(1)
	for range 10 { // a thousand changes
		var b strings.Builder
		for i := range 100 {
			fmt.Fprintf(&b, "add element ip other sluice { 10.0.0.%d }\n", i)
		}
		b.WriteString("flush set ip other sluice\n")
		d.mustNFT(b.String())
	}
	noted(11)
	d.expectNoChange(e, "other tables")

	for i := range 200 {
		d.mustApply(plans[(i+1)%2], plan.Diff(plans[i%2], plans[(i+1)%2]))
	}
	d.expectNoChange(e, "own churn")

	gen, err := d.b.generation(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		d.ask(d.client, "tcp", "10.96.0.10:80")
	}
	if out, err := d.nft("", "list", "map", "ip", "sluice", "affinity_0_1"); err != nil || !strings.Contains(out, "198.51.100.9") {
		t.Fatalf("no client was recorded, so the test proves nothing: %v %s", err, out)
	}
	d.expectNoChange(e, "affinity")
	if now, err := d.b.generation(context.Background()); err != nil || now != gen {
		t.Errorf("clients raise the generation from %d to %d (%v)", gen, now, err)
	}
}

func TestOwnWritesBeforeTheWatchAreNotReported(t *testing.T) {
	d := newTestEnv(t, 0)
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.expectNoChange(d.watch(), "the first apply")
}

func TestLostNotificationIsReportedAsExternalChange(t *testing.T) {
	d := newTestEnv(t, 0)
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	heard, goOn := make(chan backend.ExternalChange), make(chan bool)
	stop, err := d.b.Watch(func(f backend.ExternalChange) { heard <- f; <-goOn })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	raw, err := d.b.watcher.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	if err != nil {
		t.Fatal(err)
	}
	d.mustNFT("add chain ip sluice mine")
	<-heard // and it is not called again until goOn
	var b strings.Builder
	b.WriteString("add table ip other\nadd set ip other s { type ipv4_addr; }\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "add element ip other s { 10.0.%d.%d }\n", i>>8, i&255)
	}
	d.mustNFT(b.String())
	goOn <- true
	select {
	case f := <-heard:
		if !strings.Contains(f.Object, "more than could be received") {
			t.Errorf("got %+v", f)
		}
		goOn <- true
	case <-time.After(timeout):
		t.Error("no change was reported")
	}
}

func TestDriftedDetectsUnreportedCommits(t *testing.T) {
	d := newTestEnv(t, 0)
	e := d.watch()
	p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.expectNoChange(e, "to begin with")
	raw, err := d.b.watcher.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_DROP_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	})
	if err != nil {
		t.Fatal(err)
	}
	d.mustNFT("flush set ip sluice frontends")
	var found []bool
	for range 4 {
		moved, err := d.b.Drifted(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, moved)
	}
	if got := fmt.Sprint(found); got != "[false true false false]" {
		t.Errorf("Drifted returned %s", got)
	}
	d.mustApply(p, nil)
	d.expectNoChange(e, "repaired")
}

func TestReplacementIsNotReported(t *testing.T) {
	d := newTestEnv(t, 0)
	e := d.watch()
	p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	for range 2 {
		d.mustNFT("insert rule ip sluice services drop")
		if f := d.expectChange(e); !strings.Contains(f.Object, "rule written") {
			t.Errorf("got %+v", f)
		}
		d.mustApply(p, nil)
		d.expectNoChange(e, "replacing")
	}
}

func TestTruncatedNotificationsAreIgnored(t *testing.T) {
	e := &changeRecorder{}
	l := &watcher{onChange: e.record, objects: map[string]int{}, commits: new(atomic.Uint32)}
	var m nfnl.Encoder
	m.Begin(unix.NFT_MSG_DELTABLE, 0, 1, unix.NFPROTO_IPV4)
	m.PutString(unix.NFTA_TABLE_NAME, tableName)
	m.End()
	m.Begin(unix.NFT_MSG_NEWGEN, 0, 1, 0)
	m.PutUint32(unix.NFTA_GEN_ID, 7)
	m.End()
	for i := range m.Buf {
		l.datagram(m.Buf[:i])
		for bit := range 8 {
			b := append([]byte(nil), m.Buf...)
			b[i] ^= 1 << bit
			l.datagram(b)
		}
	}
	e.drain()
	l.datagram(m.Buf)
	if got := e.drain(); len(got) != 1 || !strings.Contains(got[0].Object, "table ip sluice deleted") {
		t.Errorf("got %+v", got)
	}
}

// BenchmarkAllWatched is BenchmarkAll while watching: the kernel then creates a notification for each element.
func BenchmarkAllWatched(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		p := cluster(n, m)
		for b.Loop() {
			b.StopTimer()
			d := newTestEnv(b, 0)
			stop, err := d.b.Watch(func(f backend.ExternalChange) { b.Errorf("got %+v", f) })
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			d.mustApply(p, nil)
			b.StopTimer()
			stop()
			b.StartTimer()
		}
	})
}
