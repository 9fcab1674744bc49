package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// unusedTTL is how long an unused directory is kept.
const unusedTTL = 30 * 24 * time.Hour

// Build builds the named programs that are missing, reports progress on w, and returns their directory. Concurrent builds
// are serialized. A program is renamed into place when it is complete, so an interrupted build leaves none.
func Build(ctx context.Context, w io.Writer, names ...string) (string, error) {
	all := programs()
	for _, n := range names {
		if _, ok := all[n]; !ok {
			return "", fmt.Errorf("build %s: no such program", n)
		}
	}
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, w, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	src, err := moduleDir()
	if err != nil {
		return "", err
	}
	var missing *Missing
	if _, err := Find(names...); errors.As(err, &missing) {
		for i, n := range missing.Names {
			fmt.Fprintf(w, "building %s (%d of %d; minutes the first time)\n", n, i+1, len(missing.Names))
			if err := build(ctx, w, filepath.Join(src, all[n].module), all[n].pkg, filepath.Join(dir, n)); err != nil {
				return "", fmt.Errorf("build %s: %w", n, err)
			}
		}
	} else if err != nil {
		return "", err
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // marks it as used, for prune
	prune(dir, now)
	return dir, nil
}

func build(ctx context.Context, w io.Writer, module, pkg, to string) error {
	part := to + ".part"
	defer os.Remove(part)
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build"}, flags(), []string{"-o", part, pkg})...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "PWD="+module)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(part, to)
}

// lock waits until no other process builds in dir. The kernel releases the lock when the process ends.
func lock(ctx context.Context, w io.Writer, dir string) (func(), error) {
	name := dir + ".lock"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for logged := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if !logged {
			fmt.Fprintf(w, "waiting for another build in %s\n", dir)
			logged = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// prune removes directories of other keys that have not been used for unusedTTL. It ignores errors.
func prune(dir string, now time.Time) {
	top := filepath.Dir(dir)
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || e.Name() == filepath.Base(dir) || now.Sub(info.ModTime()) < unusedTTL {
			continue
		}
		_ = os.RemoveAll(filepath.Join(top, e.Name()))
	}
}
