package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl/nfnltest"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// requireIPVS skips tests on a kernel without IPVS; in one that was made for them it fails.
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

// env is a lab with a clock that tests move.
type env struct {
	testing.TB
	*testbed.Bed
	now time.Time
}

func newEnv(t testing.TB) *env {
	requireIPVS(t)
	return &env{t, testbed.New(t, 5), time.Unix(1_700_000_000, 0)}
}

func (d *env) options() Options {
	return Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.now }}
}

func (d *env) open() *Backend {
	d.Helper()
	b, err := Open(d.options())
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { b.Close() })
	return b
}

// run runs a program in the node. Without it the test is skipped, in CI it fails.
func (d *env) run(stdin, name string, args ...string) (string, error) {
	d.Helper()
	if _, err := exec.LookPath(name); err != nil {
		msg := "a program is missing: apt-get install nftables ipvsadm iproute2: " + err.Error()
		if os.Getenv("CI") != "" {
			d.Fatal(msg)
		}
		d.Skip(msg)
	}
	var out []byte
	err := d.Lab.Node.Do(func() (err error) {
		cmd := exec.Command(name, args...)
		if stdin != "" {
			r, w, perr := os.Pipe()
			if perr != nil {
				return perr
			}
			go func() { w.WriteString(stdin); w.Close() }()
			cmd.Stdin = r
		}
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s %v: %s: %w", name, args, out, err)
	}
	return string(out), err
}

// fault makes one message fail, whichever part sends it.
type fault struct {
	after int
	lost  bool
	dead  bool // and every one after it
	fired bool
}

var errInjected = errors.New("injected")

// send counts one message and sends it, or not.
func (f *fault) send(send func() error) error {
	switch {
	case f != nil && f.dead && f.fired:
		return errInjected
	case f == nil || f.fired:
		return send()
	}
	if f.after--; f.after > 0 {
		return send()
	}
	f.fired = true
	if f.lost {
		_ = send()
	}
	return errInjected
}

// faultInjector is a backend's way to the kernel with a fault in it.
type faultInjector struct {
	fault   *fault
	netlink nfnltest.Fault // on the way to nf_tables
}

type faultyIPVS struct {
	ipvsAPI
	injector *faultInjector
}

func (v faultyIPVS) do(o op) error {
	return v.injector.fault.send(func() error { return v.ipvsAPI.do(o) })
}

type faultyLinks struct {
	linkAPI
	injector *faultInjector
}

func (l faultyLinks) addAddr(a netipAddr) error {
	return l.injector.fault.send(func() error { return l.linkAPI.addAddr(a) })
}

func (l faultyLinks) delAddr(a netipAddr) error {
	return l.injector.fault.send(func() error { return l.linkAPI.delAddr(a) })
}

func (l faultyLinks) ensureLink() (bool, error) {
	made, err := l.linkAPI.ensureLink()
	if made && err == nil && l.injector.fault != nil && !l.injector.fault.fired {
		l.injector.fault.after-- // counted, never the one that fails: the next message does
	}
	return made, err
}

type faultyRules struct {
	rulesBackend
	injector *faultInjector
}

func (c faultyRules) Apply(ctx context.Context, next *planPlan, d *planDelta) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.rulesBackend.Apply(ctx, next, d) })
}

func (c faultyRules) Guard(ctx context.Context, add, del []netipAddr) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.rulesBackend.Guard(ctx, add, del) })
}

func (c faultyRules) transact(do func() (backend.Report, error)) (backend.Report, error) {
	f := c.injector.fault
	switch {
	case f != nil && f.dead && (f.fired || f.after == 1):
		f.fired = true
		return backend.Report{}, errInjected
	case f == nil || f.fired:
		return do()
	}
	disarm := c.injector.netlink.Arm(max(f.after, 1), f.lost)
	r, err := do()
	f.fired = disarm()
	f.after -= r.Messages
	return r, err
}

// inject puts faults between a backend and the kernel.
func inject(b *Backend) *faultInjector {
	f := &faultInjector{}
	_ = b.rules.Close()
	if err := b.openRules(func(t nfnl.Transport) nfnl.Transport {
		f.netlink.Transport = t
		return &f.netlink
	}); err != nil {
		panic(err)
	}
	b.ipvs, b.links, b.rules = faultyIPVS{b.ipvs, f}, faultyLinks{b.links, f}, faultyRules{b.rules, f}
	return f
}
