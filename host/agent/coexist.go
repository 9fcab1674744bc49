package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
)

// writerLock is a Unix socket without a file, of which there is one in each network namespace, as there is one data
// plane. The kernel lets go of it when its process ends, however it ends.
const writerLock = "@sluice-writer"

// LockDataPlane makes this process the only sluice that writes to this network namespace's data plane: two would undo
// each other's work for ever.
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
		return nil, fmt.Errorf("another sluice runs on this node; it must stop first (asking which: %w)", err)
	}
	// Anybody may take the name; only who could write to the data plane counts.
	if holder.Uid != 0 && int(holder.Uid) != os.Geteuid() {
		log.Warn("somebody who is no sluice holds its lock; going on without", "lock", writerLock, "pid", holder.Pid, "uid", holder.Uid)
		return func() {}, nil
	}
	return nil, fmt.Errorf("another sluice runs on this node (process %d); it must stop first", holder.Pid)
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

// ClaimNode makes this process the only proxy of the node, and brings kernel and process to what is configured. release
// gives the node up again.
func ClaimNode(ctx context.Context, cfg *config.Config, removeKubeProxy bool, log *slog.Logger) (release func(), err error) {
	release, err = LockDataPlane(log)
	if err != nil {
		return nil, err
	}
	if err := kubeproxy.RequireStopped(ctx, "sluice does not run beside it"); err != nil {
		release()
		return nil, err
	}
	if !removeKubeProxy {
		warnLeftovers(ctx, log)
	}
	prepare(cfg, log)
	return release, nil
}
