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
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// needIPVS skips tests on a kernel without IPVS; in one that was made for them it fails.
func needIPVS(t testing.TB) {
	t.Helper()
	err := present()
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

// bed is a lab with a clock that tests move.
type bed struct {
	testing.TB
	*testbed.Bed
	t time.Time
}

func newBed(t testing.TB) *bed {
	needIPVS(t)
	return &bed{t, testbed.New(t, 5), time.Unix(1_700_000_000, 0)}
}

func (d *bed) options() Options {
	return Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.t }}
}

func (d *bed) open() *Backend {
	d.Helper()
	b, err := Open(d.options())
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { b.Close() })
	return b
}

// run runs a program in the node. Without it the test is skipped, in CI it fails.
func (d *bed) run(stdin, name string, args ...string) (string, error) {
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
	left  int
	lost  bool
	dead  bool // and every one after it
	fired bool
}

var errInjected = errors.New("injected")

// message counts one message and sends it, or not.
func (f *fault) message(send func() error) error {
	switch {
	case f != nil && f.dead && f.fired:
		return errInjected
	case f == nil || f.fired:
		return send()
	}
	if f.left--; f.left > 0 {
		return send()
	}
	f.fired = true
	if f.lost {
		_ = send()
	}
	return errInjected
}

// faulty is a backend's way to the kernel with a fault in it.
type faulty struct{ fault *fault }

type faultyIPVS struct {
	virtual
	f *faulty
}

func (v faultyIPVS) do(o op) error { return v.f.fault.message(func() error { return v.virtual.do(o) }) }

type faultyLinks struct {
	addresses
	f *faulty
}

func (l faultyLinks) add(a netipAddr) error {
	return l.f.fault.message(func() error { return l.addresses.add(a) })
}

func (l faultyLinks) del(a netipAddr) error {
	return l.f.fault.message(func() error { return l.addresses.del(a) })
}

func (l faultyLinks) ensure() (bool, error) {
	made, err := l.addresses.ensure()
	if made && err == nil && l.f.fault != nil && !l.f.fault.fired {
		l.f.fault.left-- // counted, never the one that fails: the next message does
	}
	return made, err
}

type faultyCompanion struct {
	companion
	f *faulty
}

func (c faultyCompanion) Apply(ctx context.Context, next *planPlan, d *planDelta) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.companion.Apply(ctx, next, d) })
}

func (c faultyCompanion) Guard(ctx context.Context, add, del []netipAddr) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.companion.Guard(ctx, add, del) })
}

func (c faultyCompanion) transact(do func() (backend.Report, error)) (backend.Report, error) {
	f := c.f.fault
	switch {
	case f != nil && f.dead && (f.fired || f.left == 1):
		f.fired = true
		return backend.Report{}, errInjected
	case f == nil || f.fired:
		return do()
	}
	disarm := c.companion.(interface {
		Fault(k int, lost bool) func() bool
	}).Fault(max(f.left, 1), f.lost)
	r, err := do()
	f.fired = disarm()
	f.left -= r.Messages
	return r, err
}

// inject puts faults between a backend and the kernel.
func inject(b *Backend) *faulty {
	f := &faulty{}
	b.ipvs, b.links, b.companion = faultyIPVS{b.ipvs, f}, faultyLinks{b.links, f}, faultyCompanion{b.companion, f}
	return f
}
