package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside marks the process that runs in namespaces of its own.
const inside = "SLUICE_NETLAB"

// Inside tells whether this process runs in namespaces that Reexec made.
func Inside() bool { return os.Getenv(inside) == "1" }

// Main is for TestMain: it runs the tests in a fresh network namespace. Where the kernel does not allow that, it says
// so and runs none; with CI set it fails.
func Main(m interface{ Run() int }) {
	err := Enter()
	if err == nil {
		os.Exit(m.Run())
	}
	fmt.Fprintf(os.Stderr, "testnet: SKIPPED, no tests were run: %v\n", err)
	if os.Getenv("CI") != "" {
		os.Exit(1)
	}
	os.Exit(0)
}

// Enter is for programs: it returns in namespaces of its own. Outside of them this process only waits for the one that
// Reexec starts, and ends as that does.
func Enter() error {
	if Inside() {
		return nil
	}
	code, err := Reexec()
	if err == nil {
		os.Exit(code)
	}
	return err
}

// Reexec runs this program again, with the same arguments and standard streams, in a network and mount namespace of
// its own (and a user namespace when not root), passes SIGINT and SIGTERM on, and gives its exit code. The child ends
// with its parent.
func Reexec() (int, error) {
	if Inside() {
		return 0, errors.New("already in namespaces of its own")
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if os.Geteuid() != 0 || os.Getenv("SLUICE_NETLAB_USERNS") != "" {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return run(cmd)
}

func run(cmd *exec.Cmd) (int, error) {
	p, err := (*Host)(nil).Start(cmd)
	if err != nil {
		return 0, fmt.Errorf("enter a user and network namespace (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor?): %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	for {
		select {
		case s := <-signals:
			p.signal(s)
		case <-p.Ended():
			err := p.Wait()
			if err == nil {
				return 0, nil
			}
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil
			}
			return 0, fmt.Errorf("run %s in namespaces of its own: %w", cmd.Path, err)
		}
	}
}
