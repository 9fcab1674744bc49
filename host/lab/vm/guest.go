package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// specVar is on the kernel's command line; the kernel puts parameters that it does not know into init's environment.
const specVar = "sluice_vm_spec"

// Main runs the guest's init and does not return if this process is that; otherwise it returns at once. Programs that call
// Run call it first; tests do in TestMain.
func Main() {
	path := os.Getenv(specVar)
	if os.Getpid() != 1 || path == "" {
		return
	}
	var o spec
	var text []byte
	err := enterRoot()
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	var console *os.File
	if err == nil {
		console, err = prepare(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "vm: start the guest: %v\n", err)
	} else {
		fmt.Fprint(console, beginLine(o.Nonce))
		code := supervise(o, console)
		printKernelWarnings(console)
		fmt.Fprint(console, endLine(o.Nonce, code))
		drain(console)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1) // the kernel panics, and that is an end too
}

// prepare mounts the guest's file systems, configures its network and opens its console.
func prepare(o spec) (*os.File, error) {
	for _, m := range []struct{ kind, at, data string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"tmpfs", "/run", "mode=755"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.data); err != nil && !(m.kind == "devtmpfs" && errors.Is(err, unix.EBUSY)) {
			return nil, fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
		}
	}
	console, err := openConsole()
	if err != nil {
		return nil, err
	}
	// The host's /tmp and /run are hidden; shared folders are bound from here.
	const host = "/run/host"
	if err := bind("/", host); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"); err != nil {
		return nil, fmt.Errorf("mount tmpfs on /tmp: %w", err)
	}
	slices.SortFunc(o.Share, func(a, b string) int { return len(a) - len(b) }) // a folder before those in it
	for _, path := range o.Share {
		if !strings.HasPrefix(path, "/tmp/") && !strings.HasPrefix(path, "/run/") {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			continue // it is in one that is bound already
		}
		if err := bind(host+path, path); err != nil {
			return nil, err
		}
	}
	if err := linkUp("lo"); err != nil {
		return nil, err
	}
	// With the guest's little memory the defaults are 4096, too few for the tests.
	for file, value := range map[string]string{
		"/sys/module/nf_conntrack/parameters/hashsize": "65536",
		"/proc/sys/net/netfilter/nf_conntrack_max":     "262144",
	} {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return nil, err
		}
	}
	return console, nil
}

// bind bind-mounts from at to. It stays read-only.
func bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

// openConsole opens the console in raw mode.
func openConsole() (*os.File, error) {
	console, err := os.OpenFile("/dev/console", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(console.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("get the console's terminal attributes: %w", err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(console.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("set the console to raw mode: %w", err)
	}
	return console, nil
}

// drain waits until all output has left the guest.
func drain(console *os.File) { _ = unix.IoctlSetInt(int(console.Fd()), unix.TCSBRK, 1) }

func linkUp(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
	}
	if err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

// supervise runs the program, reaps orphaned processes, and returns the program's exit code.
func supervise(o spec, console io.Writer) int {
	cmd := exec.Command(o.Args[0], o.Args[1:]...)
	cmd.Dir, cmd.Env = o.Dir, o.Env
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(console, "vm: start %s: %v\n", o.Args[0], err)
		return 127
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintf(console, "vm: wait for %s: %v\n", o.Args[0], err)
			return 127
		case pid != cmd.Process.Pid:
		case status.Signaled():
			fmt.Fprintf(console, "vm: %s was ended by %s\n", o.Args[0], status.Signal())
			return 128 + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}

// printKernelWarnings prints the kernel log's warnings, which no test sees.
func printKernelWarnings(console io.Writer) {
	f, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Fprintf(console, "vm: read the kernel log: %v\n", err)
		return
	}
	defer unix.Close(f)
	for record := make([]byte, 8192); ; {
		n, err := unix.Read(f, record)
		if errors.Is(err, unix.EPIPE) { // overwritten
			continue
		}
		if n <= 0 {
			return
		}
		_, text, _ := strings.Cut(string(record[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		for _, bad := range []string{"WARNING:", "BUG:", "Oops", "Call Trace", "table full", "Out of memory", "oom-kill"} {
			if strings.Contains(text, bad) {
				fmt.Fprintf(console, "vm: kernel: %s\n", text)
				break
			}
		}
	}
}
