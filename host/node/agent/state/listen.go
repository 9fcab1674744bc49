//go:build unix

package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/util/httpserve"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// maxConns is the maximum number of connections: each is one `sluice explain`.
const maxConns = 16

// Serve serves the state of an agent on a Unix socket that only its owner may open. With an empty path it serves nothing.
func Serve(path string, a Agent, log *slog.Logger) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("state socket: %w", err)
	}
	server := httpserve.NewServer("state socket", handler(a), log)
	limiter := httpserve.NewLimiter(maxConns, nil) // only root and this process's user can connect
	go func() {
		if err := server.Serve(limiter.Listener(l)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving the state socket failed", "err", err)
		}
	}()
	return func() {
		server.Close()
		l.Close() // removes the file also when the goroutine has not yet called Serve: then Close does not know of the listener
	}, nil
}

// listen listens on a Unix socket that only this process's user and root may connect to. It replaces the socket of a
// process that has ended, and nothing else.
func listen(path string) (net.Listener, error) {
	folder, err := safefile.OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if err := removeStale(folder, path); err != nil {
		return nil, err
	}
	var cerr error
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// bind(2) gives the file the mode of the socket, so that at no time other users can connect.
		if err := c.Control(func(fd uintptr) { cerr = syscall.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return os.NewSyscallError("fchmod", cerr)
	}}
	return config.Listen(context.Background(), "unix", path)
}

// removeStale removes a socket that nobody listens on.
func removeStale(folder *os.Root, path string) error {
	info, err := folder.Lstat(filepath.Base(path))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or set --socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%s: in use by another sluice; stop it first, or set --socket", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // such as EPROTOTYPE: a program receives datagrams on it
		return fmt.Errorf("%s: in use by another program; set --socket (%w)", path, err)
	}
	return folder.Remove(filepath.Base(path))
}
