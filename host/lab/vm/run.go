package vm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Job is a program to run in a guest.
type Job struct {
	Kernel string    // path of a kernel, from Cached or Build
	Init   string    // a program of the kernel's architecture that calls Main; "" is this one
	Memory int       // MiB; 0 means 512
	Args   []string  // the program, a path or a name in PATH, and its arguments
	Dir    string    // its working folder; "" is this process's
	Env    []string  // its environment; nil is this process's. HOME and TMPDIR are /tmp, SLUICE_VM is the kernel's name
	Share  []string  // folders in /tmp or /run that the guest is to see, in addition to Dir and the program's
	Tap    string    // a tap device of this thread's network namespace, which is the guest's link vec0; "" is none. Not on arm64
	Out    io.Writer // the program's standard output and error; nil discards them
}

// spec is the guest's task, passed as JSON.
type spec struct {
	Args  []string
	Dir   string
	Env   []string
	Share []string
	Nonce string
}

// inside is an environment variable of programs in a guest.
const inside = "SLUICE_VM"

// Inside returns the name of the test kernel that this process runs on, "" if none.
func Inside() string { return os.Getenv(inside) }

// ErrDied means that the guest ended without reporting its program's exit code.
var ErrDied = errors.New("the guest ended before its program did")

// Run boots a kernel, runs the job in it and returns the program's exit code, 128 + n if signal n ended it. An error means
// that the code is unknown: no kernel, a crash, ctx done. All of the guest's processes have ended when Run returns.
//
// The calling program is the guest's init too, unless the job names another, so it has to call Main before anything else.
func Run(ctx context.Context, job Job) (code int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("vm: run %s: %w", strings.Join(job.Args, " "), err)
		}
	}()
	if len(job.Args) == 0 {
		return 0, errors.New("no program")
	}
	if _, err := os.Stat(job.Kernel); err != nil || job.Kernel == "" {
		return 0, fmt.Errorf("there is no kernel %q: make vm-kernels", job.Kernel)
	}
	work, err := workDir()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	out := &stream{to: job.Out, nonce: rand.Text()}
	if out.to == nil {
		out.to = io.Discard
	}
	cmd, err := command(ctx, job, work, out.nonce)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	runtime.LockOSThread() // Pdeathsig refers to the thread that started the guest
	defer runtime.UnlockOSThread()
	start := startOnCPU
	if onArm64(job.Kernel) {
		start = startOnAnyCPU
	}
	release, err := start(cmd, filepath.Dir(filepath.Dir(job.Kernel)))
	defer release()
	if err != nil {
		return 0, fmt.Errorf("start the kernel: %w", err)
	}
	_ = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) // a kernel panic would dump all of its memory
	werr := cmd.Wait()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // a crashed kernel can leave processes behind
	out.flush()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case out.err != nil:
		return 0, fmt.Errorf("forward its output: %w", out.err)
	case !out.ended:
		return 0, fmt.Errorf("%w (%w)%s", ErrDied, werr, out.bootLog())
	}
	return out.code, nil
}

// command returns the kernel's command, with a process group of its own so that all of the guest's processes can be killed.
func command(ctx context.Context, job Job, work, nonce string) (*exec.Cmd, error) {
	if job.Init == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		job.Init = self
	}
	o := spec{Args: job.Args, Dir: job.Dir, Env: job.Env, Nonce: nonce}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	o.Env = append(o.Env, "HOME=/tmp", "TMPDIR=/tmp", inside+"="+filepath.Base(filepath.Dir(job.Kernel)))
	var err error
	if o.Dir == "" {
		if o.Dir, err = os.Getwd(); err != nil {
			return nil, err
		}
	}
	if path, err := exec.LookPath(job.Args[0]); err != nil {
		return nil, err
	} else if path, err = filepath.Abs(path); err != nil {
		return nil, err
	} else {
		o.Args = append([]string{path}, job.Args[1:]...)
	}
	o.Share = []string{filepath.Dir(o.Args[0]), o.Dir}
	for _, path := range job.Share {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		o.Share = append(o.Share, path)
	}
	file := filepath.Join(work, "spec")
	text, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if job.Memory == 0 {
		job.Memory = 512
	}
	boot := umlCommand
	if onArm64(job.Kernel) {
		boot = qemuCommand
	}
	cmd, err := boot(ctx, job, work, specVar+"="+file)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// umlCommand returns the command of a User-Mode Linux.
func umlCommand(ctx context.Context, job Job, work, spec string) (*exec.Cmd, error) {
	// A kernel's command line cannot hold every path.
	initLink := filepath.Join(work, "init")
	if err := os.Symlink(job.Init, initLink); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, job.Kernel, fmt.Sprintf("mem=%dM", job.Memory),
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "init="+initLink, spec,
		"con=null", "con0=null,fd:1", "ssl=null", "console=tty0", "dummy.numdummies=0", "quiet", "loglevel=2",
		"umid=vm", "uml_dir="+work)
	if job.Tap != "" {
		cmd.Args = append(cmd.Args, "vec0:transport=tap,ifname="+job.Tap)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + memoryDir(job.Memory)}
	return cmd, nil
}

// workDir makes a temporary folder whose path a kernel's command line can hold.
func workDir() (string, error) {
	parent := os.TempDir()
	if !plainPath(parent) {
		parent = "/tmp"
	}
	return os.MkdirTemp(parent, "sluice-vm-")
}

// plainPath reports whether a path has none of the characters that make and kernel command lines give a meaning.
func plainPath(path string) bool { return !strings.ContainsAny(path, " \t\n\"'\\:$#%") }

// memoryDir returns the folder of the unlinked file that is the guest's memory: /dev/shm if it has room (containers have
// 64 MiB there, and a kernel that needs more is killed), otherwise the temporary folder.
func memoryDir(mib int) string {
	const shm = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_NOEXEC == 0 &&
		int64(fs.Bavail)*fs.Bsize > int64(mib)<<20 {
		return shm
	}
	return os.TempDir()
}
