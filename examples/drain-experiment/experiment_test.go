package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestMain is also what the servers of the Pods run: the experiment starts its own program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serverCommand {
		os.Exit(serve(os.Args[2:]))
	}
	testnet.Main(m)
}

// shortForm is as quick as possible. Connections last longer than Pods take to start. A Pod has no limit below all clients: on a
// busy machine, new Pods may be ready only after the others have been drained.
func shortForm() size {
	z := longForm()
	z.pods, z.batch, z.clients, z.limit = 4, 2, 200, 200
	z.hold, z.startup, z.preStop = 300*time.Millisecond, 300*time.Millisecond, 10*time.Second // 8 s after the drain, if the machine is busy
	z.stages = []stage{{100, 1}, {50, 1}}
	z.connections = 0 // one rollout
	z.timeout = time.Minute
	return z
}

// A rolling restart with a drain in stages: no connection fails, all Pods have been replaced, and all of them had connections.
func TestNoConnectionFailsInARollingRestart(t *testing.T) {
	z := shortForm()
	all := z.experiments()
	e := all[3]
	if e.name != "drain, preStop" {
		t.Fatalf("experiment 3 is %s", e.name)
	}
	r, err := e.run(t.Context(), built(t, "plugins/lifecycle"), "nftables", &z)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + header() + "\n" + r.row())
	if err := r.check(); err != nil {
		t.Error(err)
	}
	if r.ok == 0 || len(r.names) != 2*z.pods {
		t.Errorf("%d connections to %d Pods, want some to %d", r.ok, len(r.names), 2*z.pods)
	}
}

// built returns the program and plugins.
func built(t *testing.T, plugins ...string) paths {
	t.Helper()
	testenv.DependOnSources(t)
	program := filepath.Join(t.TempDir(), "sluice")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/sluice-proxy/sluice/cmd/sluice").CombinedOutput(); err != nil {
		t.Fatalf("build sluice: %v\n%s", err, out)
	}
	return paths{program, testenv.Plugins(t, plugins...)}
}

// podAddr and podPort are the address of host i, and the port of a server there.
func podAddr(i int) netip.Addr     { return netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}) }
func podPort(i int) netip.AddrPort { return netip.AddrPortFrom(podAddr(i), port) }

// newLab returns a client and a Pod without sluice.
func newLab(t *testing.T) (client, pod *testnet.Host) {
	t.Helper()
	l, err := testnet.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	for i, h := range []**testnet.Host{&client, &pod} {
		if *h, err = l.AddHost(fmt.Sprint("h", i), podAddr(i)); err != nil {
			t.Fatal(err)
		}
	}
	return client, pod
}

// runLoad runs a load until a condition.
func runLoad(t *testing.T, l *load, what string, ok func() bool) *recorder {
	t.Helper()
	l.record = newRecorder(10 * time.Millisecond)
	ended := make(chan error, 1)
	go func() { ended <- l.run() }()
	testenv.Eventually(t, what, ok)
	l.stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return l.record
}

func TestLoadCountsEachClassOfFailure(t *testing.T) {
	client, pod := newLab(t)
	at := podPort(1)
	l := func() *load {
		return &load{host: client, to: at, short: 6, hold: 10 * time.Millisecond, check: time.Millisecond, timeout: time.Minute}
	}
	closed := l()
	r := runLoad(t, closed, "connections are refused", func() bool { return closed.finished.Load() >= 20 })
	if r.total[refused] != r.connections() || r.ok != 0 {
		t.Errorf("a closed port: %+v", r.total)
	}

	s := server{name: "p", limit: 4, cold: 4, grace: time.Minute}
	program, err := s.start(pod, at.String())
	if err != nil {
		t.Fatal(err)
	}
	full := l()
	full.hold, full.long = 50*time.Millisecond, 2
	r = runLoad(t, full, "there are successes and failures", func() bool { return full.finished.Load() >= 200 })
	if r.ok == 0 || r.total[reset] == 0 || r.total[reset] != r.failedTotal() || r.most() > s.limit {
		t.Errorf("6 and 2 clients of a server for 4: ok %d, failed %v, at most %d", r.ok, r.total, r.most())
	}

	long := l()
	long.short, long.long = 0, 3
	r = runLoad(t, long, "the server has gone", func() bool {
		if long.finished.Load() == 0 && time.Since(long.record.began) > 100*time.Millisecond {
			program.Kill()
		}
		return long.finished.Load() >= 6
	})
	if r.shed != 3 || r.longs != 3 || r.total[refused] < 3 {
		t.Errorf("a server that is killed: %d of %d open connections reset, %v", r.shed, r.longs, r.total)
	}

	if err := pod.Silence(); err != nil {
		t.Fatal(err)
	}
	silent := l()
	silent.timeout = 50 * time.Millisecond
	r = runLoad(t, silent, "connections hang", func() bool { return silent.finished.Load() >= 12 })
	if r.total[hung] != r.connections() {
		t.Errorf("a silent Pod: %v of %d", r.total, r.connections())
	}
}

// A server that gets SIGTERM serves its connections until they end.
func TestServerServesAfterSIGTERM(t *testing.T) {
	client, pod := newLab(t)
	s := server{name: "p", limit: 10, cold: 10, grace: time.Minute}
	program, err := s.start(pod, podPort(1).String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(context.Background(), "tcp", podPort(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := testnet.Greeting(c); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- program.End(syscall.SIGTERM, time.Minute) }()
	testenv.Eventually(t, "new connections are refused", func() bool {
		_, err := client.Ask("tcp", podPort(1), time.Minute)
		return testnet.Refused(err)
	})
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("an open connection: %d bytes, %v", n, err)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
