package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
)

// writerLock is a Unix socket without a file, of which there is one in each network namespace, as there is one data
// plane. The kernel lets go of it when its process ends, however it ends.
const writerLock = "@sluice-writer"

// lockWriter makes this process the only sluice that writes to this network namespace's data plane: two would undo
// each other's work for ever.
func lockWriter(log *slog.Logger) (unlock func(), err error) {
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

// refuseKubeProxy is an error while kube-proxy runs: it would write back what is removed, and both would translate the
// same packets.
func refuseKubeProxy(ctx context.Context, what string) error {
	by, err := kubeproxy.Running(ctx, "/proc", kubeproxy.MetricsAddress)
	if err != nil {
		return err
	}
	if by != "" {
		return fmt.Errorf("kube-proxy runs on this node (%s): %s; stop it first", by, what)
	}
	return nil
}

// tellLeftovers warns of what kube-proxy has left.
func tellLeftovers(ctx context.Context, log *slog.Logger) {
	found, err := kubeproxy.Find(ctx)
	if err != nil {
		log.Warn("not all of what kube-proxy may have left can be seen", "err", err)
	}
	for _, l := range found {
		log.Warn("kube-proxy has left this, which may go on deciding about connections: start with --cleanup-kube-proxy to remove it", "what", l.String())
	}
}

// removeLeftovers removes it.
func removeLeftovers(ctx context.Context, log *slog.Logger) error {
	removed, err := kubeproxy.Remove(ctx)
	for _, l := range removed {
		log.Info("removed what kube-proxy had left", "what", l.String())
	}
	return err
}

// retireLeftovers removes it, but for virtual servers with open connections, which go with the last of those or after
// the time that mode ipvs gives its own.
func retireLeftovers(ctx context.Context, log *slog.Logger) {
	begun, said := time.Now(), false
	for {
		removed, busy, err := kubeproxy.Retire(ctx)
		if busy > 0 && time.Since(begun) > retireBound {
			busy = 0
			removed, err = kubeproxy.Remove(ctx)
		}
		for _, l := range removed {
			log.Info("removed what kube-proxy had left", "what", l.String())
		}
		switch {
		case err != nil && ctx.Err() == nil:
			log.Error("not all of what kube-proxy has left could be removed", "err", err)
		case busy > 0 && !said:
			log.Info("virtual servers of kube-proxy's stay for their connections, and get no new ones", "servers", busy, "until", begun.Add(retireBound))
			said = true
		}
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retireEvery):
		}
	}
}

// firstHeld begins things, once, when the data plane holds all that was planned.
type firstHeld struct {
	engine.Observers // nobody
	begin            func(func())
	do               []func()
	once             sync.Once
}

// OnApply implements engine.Observer.
func (f *firstHeld) OnApply(p *engine.ApplyResult) {
	if p.Synced {
		f.once.Do(func() {
			for _, do := range f.do {
				f.begin(do)
			}
		})
	}
}
