// Package buildcache keeps what takes minutes to build in directories of the user's cache, each named by a hash of what it is
// built from: ~/.cache/sluice/KIND/KEY.
package buildcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// unusedTTL is how long an unused directory is kept.
const unusedTTL = 30 * 24 * time.Hour

// Missing is the error of what has not been built.
type Missing struct {
	Names []string
	Dir   string // where they would be
	Build string // the command that builds them
}

func (m *Missing) Error() string {
	return fmt.Sprintf("no %s in %s: run %s", strings.Join(m.Names, ", "), m.Dir, m.Build)
}

// Folder returns the directory of a kind for a key.
func Folder(kind string, key hash.Hash) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder: %w", err)
	}
	return filepath.Join(cache, "sluice", kind, hex.EncodeToString(key.Sum(nil))[:16]), nil
}

// Open creates a directory of Folder unless it exists, and waits until no other process builds in it. done ends that, and removes
// directories of other keys that have not been used for unusedTTL. The kernel ends it too when the process ends.
func Open(ctx context.Context, w io.Writer, dir string) (done func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	name := dir + ".lock"
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for logged := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
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
	return func() {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // marks it as used, for prune
		prune(dir, now)
		f.Close()
	}, nil
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
