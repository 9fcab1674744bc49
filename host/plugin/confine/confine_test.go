//go:build linux

package confine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// children are what the test binary does as a child process.
var children = map[string]func() error{
	"descriptors":   func() error { return listDescriptors(false) },
	"inherit":       func() error { return listDescriptors(true) },
	"bystander":     func() error { _, err := io.ReadAll(os.Stdin); return err },
	"attempts":      attempts,
	"compute":       compute,
	"parent":        parentOfAnOrphan,
	"wait for ever": func() error { fmt.Println("ready"); select {} },
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		if err := children[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{"confine.test", name}, args...)
	return cmd
}

func requireAllThreads(t *testing.T) {
	t.Helper()
	if err := allThreads(unix.SYS_GETPID, 0, 0); err == errCgo {
		testenv.Require(t, err)
	}
}

// listDescriptors prints the regular files among the descriptors of a child of this process.
func listDescriptors(closed bool) error {
	if closed {
		if err := Descriptors(); err != nil {
			return err
		}
		cmd := child("descriptors")
		cmd.Stdout = os.Stdout
		return Run(cmd, nil)
	}
	for fd := range 64 {
		var st unix.Stat_t
		if fd > 2 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			fmt.Println(path)
		}
	}
	return nil
}

// A process that is started with an open file does not pass it on.
func TestInheritedDescriptorsDoNotReachChildren(t *testing.T) {
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	for name, want := range map[string]bool{"descriptors": true, "inherit": false} {
		cmd := child(name)
		cmd.ExtraFiles = []*os.File{secret}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "secret") != want {
			t.Errorf("%s: %v, with the file: %t\n%s", name, err, want, out)
		}
	}
}

// attempts tries everything that a confined process must not do, and prints what works. Each attempt runs in each of several
// threads, old and new.
func attempts() error {
	folder := os.Args[2]
	inside := filepath.Join(folder, "inside")
	var before sync.WaitGroup
	run, done := make(chan func(), 3), make(chan bool)
	for range 3 { // threads from before
		before.Add(1)
		go func() {
			runtime.LockOSThread()
			before.Done()
			(<-run)()
			done <- true
			select {}
		}()
	}
	before.Wait()
	layers, err := Enter(&Policy{Nice: 7, Memory: 256 << 20, FileSize: 4096, Files: 16, Folder: folder, Calls: slices.Concat(Files(), Runtime())})
	if err != nil {
		return err
	}
	agent := os.Getppid()
	var mu sync.Mutex
	allowed := map[string]int{}
	try := func() {
		var page [1]byte
		for name, f := range map[string]func() error{
			"write inside":  func() error { return os.WriteFile(inside, nil, 0o600) },
			"folder inside": func() error { return os.Mkdir(inside+".folder", 0o700) },
			"link inside":   func() error { return os.Symlink("/", inside+".link") },
			"thread":        func() error { return call(unix.SYS_CLONE, unix.CLONE_THREAD, 0) }, // without memory in common: EINVAL
			"page out": func() error {
				memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
				if err != nil {
					return err
				}
				return unix.Madvise(memory, unix.MADV_PAGEOUT)
			},
			"outside":     func() error { _, err := os.ReadDir(filepath.Dir(folder)); return err },
			"/etc/passwd": func() error { _, err := os.ReadFile("/etc/passwd"); return err },
			"/proc":       func() error { _, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", agent)); return err },
			"itself":      func() error { _, err := os.ReadFile("/proc/self/status"); return err },
			"tcp":         func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err },
			"unix":        func() error { _, err := net.Listen("unix", "@sluice-confine-test"); return err },
			"netlink": func() error {
				_, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
				return err
			},
			"pair":         func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
			"exec":         func() error { return unix.Exec("/proc/self/exe", []string{"x"}, nil) },
			"fork":         func() error { _, err := syscall.ForkExec("/proc/self/exe", []string{"x"}, nil); return err },
			"signal":       func() error { return unix.Kill(agent, 0) },
			"signal group": func() error { return unix.Kill(0, 0) },
			"tgkill":       func() error { return unix.Tgkill(agent, agent, 0) },
			"ptrace":       func() error { return unix.PtraceSeize(agent) },
			"read memory": func() error {
				local := []unix.Iovec{{Base: &page[0], Len: 1}}
				_, err := unix.ProcessVMReadv(agent, local, []unix.RemoteIovec{{Base: 4096, Len: 1}}, 0)
				if err == unix.EFAULT { // it may read, but there is nothing
					return nil
				}
				return err
			},
			"pidfd":      func() error { _, err := unix.PidfdOpen(agent, 0); return err },
			"prlimit":    func() error { return unix.Prlimit(agent, unix.RLIMIT_NOFILE, nil, new(unix.Rlimit)) },
			"mount":      func() error { return unix.Mount("", "/", "", unix.MS_PRIVATE, "") },
			"namespaces": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
			"io_uring":   func() error { return call(unix.SYS_IO_URING_SETUP, 1, 0) },
			"bpf":        func() error { return call(unix.SYS_BPF, 0, 0) },
			"memfd":      func() error { _, err := unix.MemfdCreate("x", 0); return err },
			"executable memory": func() error {
				_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
				return err
			},
			"shared memory": func() error {
				_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
				return err
			},
			"priority":     func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) },
			"capabilities": func() error { return call(unix.SYS_CAPGET, 0, 0) },
			"filter":       func() error { return call(unix.SYS_SECCOMP, 0, 0) },
			"clock":        func() error { return call(unix.SYS_CLOCK_SETTIME, 0, 0) },
			"reboot":       func() error { return call(unix.SYS_REBOOT, 0, 0) },
		} {
			err := f()
			mu.Lock()
			allowed[name] += map[bool]int{true: 1}[err == nil]
			mu.Unlock()
		}
	}
	for range 3 {
		run <- try
		<-done
	}
	fresh := make(chan bool)
	go func() {
		runtime.LockOSThread()
		try()
		fresh <- true
	}()
	<-fresh
	return json.NewEncoder(os.Stdout).Encode(result{layers, allowed})
}

type result struct {
	Layers  []Layer
	Allowed map[string]int // attempts that worked, of four threads
}

// call makes a system call with arguments that are not valid: EPERM and ENOSYS are a refusal, anything else comes from beyond the
// filter.
func call(nr, a, b uintptr) error {
	_, _, errno := unix.RawSyscall(nr, a, b, 0)
	if errno == unix.EPERM || errno == unix.ENOSYS {
		return errno
	}
	return nil
}

// TestConfinedThreadsCanDoNothingElse runs all attempts in threads that were there before, and in a new one.
func TestConfinedThreadsCanDoNothingElse(t *testing.T) {
	requireAllThreads(t)
	cmd := child("attempts", t.TempDir())
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := Run(cmd, nil); err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatal(err)
	}
	landlock := true
	for _, l := range r.Layers {
		if l.Err != "" {
			t.Logf("not in force here: %s: %s", l.Name, l.Err)
		}
		if l.Name == Landlock {
			landlock = l.Err == ""
		}
		if l.Name == Filter && l.Err != "" {
			t.Skip("a kernel without filters")
		}
	}
	if len(r.Layers) != 6 {
		t.Errorf("layers %v", r.Layers)
	}
	for name, n := range r.Allowed {
		want := 0
		switch {
		case name == "write inside":
			want = 4
		case !landlock && slices.Contains([]string{"outside", "/etc/passwd", "/proc", "itself"}, name):
			want = n // the folder's process keeps file calls
		}
		if n != want {
			t.Errorf("%s: works in %d of 4 threads, want %d", name, n, want)
		}
	}
}

// compute does in a sealed process what Go's runtime may ever need: it grows, collects, returns memory, blocks threads, preempts
// and sleeps.
func compute() error {
	runtime.GOMAXPROCS(2)
	if _, err := Enter(&Policy{Memory: 512 << 20, Calls: Runtime(), Kill: true}); err != nil {
		return err
	}
	for range 3 { // as lanes and the control socket do
		go func() {
			runtime.LockOSThread()
			_, _ = unix.Read(0, make([]byte, 1))
		}()
	}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			var kept [][]byte
			for i := range 64 {
				kept = append(kept, make([]byte, 64<<10))
				time.Sleep(time.Duration(i) * 10 * time.Microsecond) // pace of a thread
				_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, new(unix.Timespec))
			}
			runtime.KeepAlive(kept)
		})
	}
	stop := make(chan bool)
	go func() {
		for i := 0; ; i++ { // has to be preempted
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 20 {
		runtime.GC()
	}
	wg.Wait()
	close(stop)
	runtime.GC()
	_, err := os.Stdout.WriteString("done\n")
	return err
}

func TestRuntimeWorksWithinTheFilter(t *testing.T) {
	requireAllThreads(t)
	cmd := child("compute")
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	stdin, err := cmd.StdinPipe() // on which nothing arrives
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := Run(cmd, nil); err != nil || out.String() != "done\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// parentOfAnOrphan starts a child, prints its id and ends.
func parentOfAnOrphan() error {
	cmd := child("wait for ever")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	go func() { _ = Run(cmd, nil) }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return errors.Join(errors.New("the child has not started"), err)
	}
	fmt.Println(cmd.Process.Pid)
	return nil
}

func TestChildrenEndWithTheirParent(t *testing.T) {
	out, err := child("parent").Output()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil; {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(stat), ") Z ") {
			return // nobody waits for it here
		}
		if time.Now().After(deadline) {
			t.Fatal("the child is still there")
		}
		runtime.Gosched()
	}
}
