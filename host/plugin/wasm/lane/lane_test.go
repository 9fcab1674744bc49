package lane

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the process of the tests: it answers numbers with the next number.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "process" {
		os.Exit(m.Run())
	}
	lanes, err := Map(os.NewFile(3, "memory"))
	if err != nil {
		os.Exit(1)
	}
	for _, l := range lanes {
		go func() {
			runtime.LockOSThread()
			for {
				l.Receive()
				binary.LittleEndian.PutUint64(l.Answer(), binary.LittleEndian.Uint64(l.Request())+1)
				l.Reply()
			}
		}()
	}
	select {}
}

// mapped returns a new memory and its lanes.
func mapped(t testing.TB) (*os.File, []*Lane) {
	t.Helper()
	f, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	lanes, err := Map(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Unmap(lanes) })
	return f, lanes
}

func start(t testing.TB) []*Lane {
	t.Helper()
	f, lanes := mapped(t)
	cmd := exec.Command("/proc/self/exe", "process")
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return lanes
}

func ask(t testing.TB, l *Lane, n uint64) {
	binary.LittleEndian.PutUint64(l.Request(), n)
	l.Send()
	for answered := false; !answered; {
		answered, _ = l.Await(time.Second)
	}
	if got := binary.LittleEndian.Uint64(l.Answer()); got != n+1 {
		t.Errorf("%d: answer %d", n, got)
	}
}

func TestLanesAnswerAtTheSameTime(t *testing.T) {
	lanes := start(t)
	done := make(chan bool)
	for i, l := range lanes {
		go func() {
			for n := range uint64(2000) {
				ask(t, l, n<<8|uint64(i))
			}
			done <- true
		}()
	}
	for range lanes {
		<-done
	}
}

// A process that has been stopped does not answer, and its reader notices.
func TestPatienceEnds(t *testing.T) {
	_, lanes := mapped(t)
	lanes[0].Send()
	if answered, waited := lanes[0].Await(time.Millisecond); answered || waited < time.Millisecond || waited > 4*time.Millisecond {
		t.Errorf("an answer of nobody: %t, after %s", answered, waited)
	}
	lanes[0].Reply()
	if answered, _ := lanes[0].Await(time.Hour); !answered {
		t.Error("no answer")
	}
}

// Who has the memory cannot make it smaller, so that reading it would end sluice.
func TestMemoryCannotChangeItsSize(t *testing.T) {
	f, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{0, Size - 1, Size + 1} {
		if err := f.Truncate(size); err == nil {
			t.Errorf("truncated to %d bytes", size)
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("another seal")
	}
}

// Trimmed pages are zero, and the lane works on.
func TestTrimReturnsPages(t *testing.T) {
	lanes := start(t)
	l := lanes[1]
	ask(t, l, 1)
	l.Request()[1<<20], l.Answer()[1<<20] = 1, 1
	l.Trim()
	if l.Request()[1<<20] != 0 || l.Answer()[1<<20] != 0 {
		t.Error("pages are kept")
	}
	ask(t, l, 2)
}

func TestCPUTimeOfAProcessIsReadable(t *testing.T) {
	if CPU(os.Getpid()) <= 0 {
		t.Error("no CPU time of this process")
	}
	if CPU(1<<22) != 0 {
		t.Error("CPU time of no process")
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	l := start(b)[0]
	runtime.LockOSThread()
	for b.Loop() {
		ask(b, l, 1)
	}
}
