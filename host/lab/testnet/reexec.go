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

// inside is set in the environment of a process that runs in namespaces of its own.
const inside = "SLUICE_TESTNET"

// Inside reports whether this process runs in namespaces that Reexec created.
func Inside() bool { return os.Getenv(inside) == "1" }

// Main runs a package's tests in a new network namespace, for use in TestMain. Where the kernel does not allow one it runs
// none and says so; with CI set it fails.
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

// Enter is Main for programs: it returns in a process with namespaces of its own. The calling process waits for that one
// and exits with its code.
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

// Reexec runs this program again in a network and mount namespace of its own, and a user namespace if not root, with the
// same arguments and standard streams. It forwards SIGINT and SIGTERM and returns the exit code, or 128 + n, with a message,
// if signal n ended the child. The child is killed with its parent.
func Reexec() (int, error) {
	if Inside() {
		return 0, errors.New("the process is already in namespaces of its own")
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(exe, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if os.Geteuid() != 0 || os.Getenv("SLUICE_TESTNET_USERNS") != "" {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return run(cmd)
}

func run(cmd *exec.Cmd) (code int, err error) {
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
			if !errors.As(err, &exit) {
				return 0, fmt.Errorf("run %s in namespaces of its own: %w", cmd.Path, err)
			}
			status := exit.Sys().(syscall.WaitStatus)
			if !status.Signaled() {
				return status.ExitStatus(), nil
			}
			fmt.Fprintf(cmd.Stderr, "testnet: %s was ended by signal %d (%s)\n", cmd.Path, status.Signal(), status.Signal())
			return 128 + int(status.Signal()), nil
		}
	}
}
