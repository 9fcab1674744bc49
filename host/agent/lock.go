package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// writerLock is an abstract Unix socket. Like the data plane, its name exists once in each network namespace. The kernel
// releases it when the process ends in whatever way.
const writerLock = "@sluice-writer"

// LockDataPlane makes this process the only sluice that writes to the data plane of this network namespace: two would
// undo each other's changes forever.
func LockDataPlane(log *slog.Logger) (unlock func(), err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: writerLock})
	switch {
	case err == nil:
		return func() { l.Close() }, nil
	case !errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("lock the data plane: %w", err)
	}
	holder, err := lockHolder()
	if err != nil {
		return nil, fmt.Errorf("another sluice is running on this node; stop it first (read its process ID: %w)", err)
	}
	// Every process can take the name; only those that could write to the data plane count.
	if holder.Uid != 0 && int(holder.Uid) != os.Geteuid() {
		log.Warn("another program has the data plane lock; continuing without it", "lock", writerLock, "pid", holder.Pid, "uid", holder.Uid)
		return func() {}, nil
	}
	return nil, fmt.Errorf("another sluice is running on this node (process %d); stop it first", holder.Pid)
}

func lockHolder() (*unix.Ucred, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: writerLock})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var holder *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { holder, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return holder, errors.Join(err, cerr)
}
