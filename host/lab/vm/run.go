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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Job is a program to run in a machine of its own.
type Job struct {
	Kernel string    // path of a kernel, from Cached or Build
	Memory int       // MiB; 0 means 512
	Args   []string  // the program, a path or a name to look up in PATH, and its arguments
	Dir    string    // where it runs; "" is here
	Env    []string  // its environment; nil is this process's. HOME and TMPDIR are /tmp, SLUICE_VM is the kernel's name
	Share  []string  // folders that the guest sees although they are in /tmp or /run; Dir and the program's are shared anyway
	Out    io.Writer // what the program writes, standard output and error; nil is nowhere
}

// order is what the guest is told to do.
type order struct {
	Args  []string
	Dir   string
	Env   []string
	Share []string
	Nonce string
}

// inside is the environment variable that a program in a guest finds.
const inside = "SLUICE_VM"

// Inside gives the name of the test kernel that this process runs on; "" is the machine's own.
func Inside() string { return os.Getenv(inside) }

// ErrDied is about a machine that ended without saying how its program did.
var ErrDied = errors.New("the machine ended before its program did")

// Run boots a kernel, runs the job in it and gives the program's exit code, 128 and the signal's number when one ended
// it. Any error means that the code is not known: no kernel, a crash, ctx done. Nothing of the machine is left then.
//
// The program that calls Run is the guest's init too, so Main has to be the first thing that it does.
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
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the kernel: %w", err)
	}
	_ = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) // a panic would dump all of its memory
	werr := cmd.Wait()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // a kernel that crashes can leave its processes behind
	out.flush()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case out.err != nil:
		return 0, fmt.Errorf("pass on what it writes: %w", out.err)
	case !out.ended:
		return 0, fmt.Errorf("%w (%v)%s", ErrDied, werr, out.boot())
	}
	return out.code, nil
}

// command is the kernel's process: a group of its own, so that its guests' processes end with it.
func command(ctx context.Context, job Job, work, nonce string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	o := order{Args: job.Args, Dir: job.Dir, Env: job.Env, Nonce: nonce}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	o.Env = append(o.Env, "HOME=/tmp", "TMPDIR=/tmp", inside+"="+filepath.Base(filepath.Dir(job.Kernel)))
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
	file := filepath.Join(work, "order")
	text, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	// A kernel's command line cannot hold every path.
	initLink := filepath.Join(work, "init")
	if err := os.Symlink(self, initLink); err != nil {
		return nil, err
	}
	memory := job.Memory
	if memory == 0 {
		memory = 512
	}
	cmd := exec.CommandContext(ctx, job.Kernel, fmt.Sprintf("mem=%dM", memory),
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "init="+initLink, orderVar+"="+file,
		"con=null", "con0=null,fd:1", "ssl=null", "console=tty0", "dummy.numdummies=0", "quiet", "loglevel=2",
		"umid=vm", "uml_dir="+work)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + memoryDir(memory)}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
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

// memoryDir is where the guest's memory is, a file without a name: in memory where there is room (containers have
// 64 MiB there, and the kernel is killed when it needs more), else on the disk.
func memoryDir(mib int) string {
	const shm = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(shm, &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_NOEXEC == 0 &&
		int64(fs.Bavail)*fs.Bsize > int64(mib)<<20 {
		return shm
	}
	return os.TempDir()
}
