package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "modprobe" { // in the root directory of TestModulesAreLoadedWithTheHostsModprobe
		fmt.Println("modprobe: FATAL: Module", os.Args[1], "not found in directory /lib/modules/x")
		os.Exit(1)
	}
	testnet.Main(m)
}

// requireIPVS skips the test if the kernel has no IPVS; in the test kernels it fails.
func requireIPVS(t testing.TB) {
	t.Helper()
	err := checkIPVS()
	switch {
	case err == nil:
	case os.Getenv("SLUICE_VM") != "":
		t.Fatal(err)
	case errors.Is(err, ErrNoIPVS):
		t.Skip(err, "- make test-vm runs this on a kernel that has it")
	default:
		t.Fatal(err)
	}
}

const askTimeout = testnet.AnswerTimeout

// env is a test network with a clock that tests advance.
type env struct {
	testing.TB
	*testbed.Bed
	now  time.Time
	last *Backend // opened last
	// markMask is Options.MarkMask.
	markMask uint32
}

func newEnv(t testing.TB) *env {
	requireIPVS(t)
	return newEnvOf(t, 5)
}

func newEnvOf(t testing.TB, pods int) *env {
	return &env{TB: t, Bed: testbed.New(t, pods), now: time.Unix(1_700_000_000, 0)}
}

// closeAtEnd closes the Backend that is opened last when the test ends. The test closes those before it: all of their
// state would stay in memory if each had a cleanup of its own.
func (d *env) closeAtEnd(b *Backend) *Backend {
	if d.last == nil {
		d.Cleanup(func() { d.last.Close() })
	}
	d.last = b
	return b
}

func (d *env) options() Options {
	return Options{Netns: d.Lab.Node.Fd(), MarkMask: d.markMask, Now: func() time.Time { return d.now }}
}

func (d *env) open() *Backend {
	d.Helper()
	b, err := Open(d.options())
	if err != nil {
		d.Fatal(err)
	}
	return d.closeAtEnd(b)
}

// run runs a program in the node. If it is not installed, the test is skipped; in CI it fails.
func (d *env) run(stdin, name string, args ...string) (string, error) {
	d.Helper()
	testenv.RequireProgram(d, name, "nftables ipvsadm iproute2")
	out, err := d.Lab.Node.Run(stdin, append([]string{name}, args...)...)
	if err != nil {
		err = fmt.Errorf("%s %v: %s: %w", name, args, out, err)
	}
	return out, err
}

func (d *env) mustRun(words ...string) string {
	d.Helper()
	out, err := d.run("", words[0], words[1:]...)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

// ipvsadmSave returns the virtual servers as ipvsadm lists them, without connections.
func (d *env) ipvsadmSave() string {
	d.Helper()
	out, err := d.run("", "ipvsadm", "-Sn")
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func (d *env) linkAddrs() string {
	d.Helper()
	out, err := d.run("", "ip", "-br", "addr", "show", "dev", DefaultLink)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func (d *env) apply(b *Backend, next *plan.Plan, delta *plan.Delta) backend.Report {
	d.Helper()
	r, err := b.Apply(context.Background(), next, delta)
	if err != nil {
		d.Fatal(err)
	}
	d.expectRead(b, next)
	return r
}

func (d *env) expectRead(b *Backend, want *plan.Plan) {
	d.Helper()
	want = plan.Normalize(want, b.Caps())
	got, err := b.Read(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if !want.Equal(got) {
		d.Fatalf("read a different plan (- want, + got):\n%s", plan.FormatDiff(want, got))
	}
}

// settle calls Apply, whenever the backend asks for it, until it no longer does.
func (d *env) settle(b *Backend, p *plan.Plan) {
	d.Helper()
	for range 40 {
		r := d.apply(b, p, &plan.Delta{})
		if r.RequeueAfter == 0 {
			return
		}
		if r.RequeueAfter == drainInterval && checkIPVS() == nil {
			time.Sleep(time.Second) // time passes: IPVS keeps a reset connection for 10 s
		}
		d.now = d.now.Add(r.RequeueAfter)
	}
	d.Fatal("the backend keeps asking for another Apply")
}

// repairDrift calls Apply if the state has drifted, as the engine does.
func (d *env) repairDrift(b *Backend, p *plan.Plan) bool {
	d.Helper()
	drifted, err := b.Drifted(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if drifted {
		d.apply(b, p, nil)
		d.settle(b, p)
	}
	return drifted
}

func (d *env) ask(h *testnet.Host, network, to string) testnet.Answer {
	d.Helper()
	a, err := h.Ask(network, netip.MustParseAddrPort(to), askTimeout)
	if err != nil {
		d.Fatalf("%s asks %s: %v", h.Name, to, err)
	}
	return a
}

func (d *env) dial(to string) net.Conn {
	d.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := d.Client.Dial(ctx, "tcp", netip.MustParseAddrPort(to))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { c.Close() })
	if _, err := testnet.Greeting(c); err != nil {
		d.Fatal(err)
	}
	return c
}

func checkAlive(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(askTimeout))
	if _, err := c.Write([]byte("still there\n")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 12))
	return err
}
