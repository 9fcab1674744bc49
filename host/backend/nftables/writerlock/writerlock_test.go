package writerlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend/nftables/writerlock"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// holdEnv makes this program take the lock, print the error or an empty line, and wait until its input ends.
const holdEnv = "SLUICE_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if os.Getenv(holdEnv) != "" {
		_, err := writerlock.Acquire(0)
		text := ""
		if err != nil {
			text = err.Error()
		}
		fmt.Println(text)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	testnet.Main(m)
}

func newHost(t *testing.T) *testnet.Host {
	t.Helper()
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	return lab.Node
}

// hold starts a process that takes the lock.
func hold(t *testing.T, h *testnet.Host, attr *syscall.SysProcAttr) *testnet.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), holdEnv+"=1")
	cmd.SysProcAttr = attr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "\n" {
		t.Fatalf("it did not take the lock: %q, %v", line, err)
	}
	return p
}

// holder returns who has the lock, "" if nobody has.
func holder(t *testing.T, h *testnet.Host) string {
	t.Helper()
	release, err := writerlock.Acquire(h.Fd())
	var held *writerlock.HeldError
	switch {
	case errors.As(err, &held):
		return held.Holder
	case err != nil:
		t.Fatal(err)
	}
	release()
	return ""
}

func nft(t *testing.T, h *testnet.Host, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return h.Run("", append([]string{"nft"}, args...)...)
}

func TestOneHolderPerNetworkNamespace(t *testing.T) {
	h, other := newHost(t), newHost(t)
	release, err := writerlock.Acquire(h.Fd())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := holder(t, h), fmt.Sprint("process ", os.Getpid()); got != want {
		t.Errorf("held by %q, want %q", got, want)
	}
	if got := holder(t, other); got != "" {
		t.Errorf("another namespace: held by %s", got)
	}
	release()
	if got := holder(t, h); got != "" {
		t.Errorf("released: held by %s", got)
	}
}

func TestKilledHolderReleasesIt(t *testing.T) {
	h := newHost(t)
	for range 3 {
		p := hold(t, h, nil)
		if got, want := holder(t, h), fmt.Sprint("process ", p.PID()); got != want {
			t.Errorf("held by %q, want %q", got, want)
		}
		p.Kill()
		if got := holder(t, h); got != "" {
			t.Errorf("killed: held by %s", got)
		}
	}
}

func TestContainersExcludeEachOther(t *testing.T) {
	h := newHost(t)
	p := hold(t, h, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS})
	if got, want := holder(t, h), "process 1 of another PID namespace, such as a Pod's"; got != want {
		t.Errorf("held by %q, want %q", got, want)
	}
	p.Kill()
	if got := holder(t, h); got != "" {
		t.Errorf("killed: held by %s", got)
	}
}

func TestOtherProgramsCannotRemoveIt(t *testing.T) {
	h := newHost(t)
	p := hold(t, h, nil)
	want := fmt.Sprint("process ", p.PID())
	for _, args := range [][]string{{"flush", "ruleset"}, {"delete", "table", "ip", "sluice-lock"}, {"add", "chain", "ip", "sluice-lock", "c"}} {
		out, err := nft(t, h, args...)
		if (err == nil) != (args[0] == "flush") {
			t.Errorf("nft %v: %v %s", args, err, out)
		}
		if got := holder(t, h); got != want {
			t.Fatalf("after nft %v: held by %q, want %q", args, got, want)
		}
	}
	out, err := nft(t, h, "list", "ruleset")
	if err != nil || !strings.Contains(out, "held by sluice, "+want) {
		t.Errorf("nft list ruleset: %v %s", err, out)
	}
}

func TestTableWithoutAnOwnerIsNoLock(t *testing.T) {
	h := newHost(t)
	if out, err := nft(t, h, "add", "table", "ip", "sluice-lock"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	release, err := writerlock.Acquire(h.Fd())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got := holder(t, h); got == "" {
		t.Error("taken twice")
	}
}

// TestAttemptChangesNothing: other programs, and sluice itself, watch the ruleset for changes.
func TestAttemptChangesNothing(t *testing.T) {
	h := newHost(t)
	hold(t, h, nil)
	conn, err := nfnl.Open(h.Fd(), nfnl.DefaultSendBuffer)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before, err := conn.Generation()
	if err != nil {
		t.Fatal(err)
	}
	if holder(t, h) == "" {
		t.Error("taken twice")
	}
	if after, err := conn.Generation(); err != nil || after != before {
		t.Errorf("generation %d, then %d, %v", before, after, err)
	}
}

func TestItTakesCapNetAdmin(t *testing.T) {
	h := newHost(t)
	attempt := func() (err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // not unlocked: the thread has no capabilities and ends
			err = h.Do(func() error {
				hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				var now [2]unix.CapUserData
				if err := unix.Capget(&hdr, &now[0]); err != nil {
					return err
				}
				now[0].Effective &^= 1 << unix.CAP_NET_ADMIN
				if err := unix.Capset(&hdr, &now[0]); err != nil {
					return err
				}
				_, err := writerlock.Acquire(0)
				return err
			})
		}()
		<-done
		return err
	}
	for _, state := range []string{"free", "held"} {
		if state == "held" {
			hold(t, h, nil)
		}
		if err := attempt(); err == nil || !strings.Contains(err.Error(), "need CAP_NET_ADMIN") {
			t.Errorf("%s: %v", state, err)
		}
	}
}
