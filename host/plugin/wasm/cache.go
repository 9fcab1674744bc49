package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// The compile cache has a folder per module, whose name depends on the module and on what makes code of it: the meter, its limits
// and the engine. It contains the files of an entry (see stored.go) and a manifest with their digests. wazero trusts the sizes
// and offsets of its code and checks only the code, so a folder whose manifest does not match is deleted, not read.
//
// Several processes may use a cache. An entry is written in a folder of its own and renamed when it is complete. Who
// reads or writes an entry has a shared lock on its folder (flock); it is deleted under an exclusive lock only.

const (
	manifestName = "MANIFEST"
	tempPrefix   = "sluice-compile-"
	maxEntries   = 32       // modules; the oldest are evicted
	maxManifest  = 64 << 10 // bytes
)

// compileCache is the folder of compiled code; dir "" means that nothing is cached.
type compileCache struct{ dir string }

// entryName names the entry of a module. The engine's key, which is the name of a file in it, depends on the processor.
func entryName(revision string, limits *meter.Limits) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "entry 2\n%s\n%s\n%+v\n%s/%s %s\n", revision, meter.Version(), *limits, runtime.GOOS, runtime.GOARCH, engineVersion())
	return hex.EncodeToString(sum.Sum(nil))
}

// engineVersion returns the version of wazero in this program, or "" if it is not known.
func engineVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/tetratelabs/wazero" {
				return m.Version + " " + m.Sum
			}
		}
	}
	return ""
}

// folders returns where compiled code can be written, the best first.
func (c compileCache) folders() []string {
	list := []string{os.TempDir(), "/dev/shm"} // containers with a read-only root file system have the latter
	if c.dir != "" {
		list = append([]string{c.dir}, list...)
	}
	return list
}

// temporary returns a folder for a moment, in the first place where one can be made.
func (c compileCache) temporary() (*cacheEntry, error) {
	var errs []error
	for _, dir := range c.folders() {
		if dir == c.dir {
			if err := checkCacheDir(dir); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		entry, err := c.newEntry(dir)
		if err == nil {
			return entry, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no folder for a temporary file (set pluginCacheDir): %w", errors.Join(errs...))
}

// checkCacheDir creates dir if necessary and checks that no other user can have put code there.
func checkCacheDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return safefile.CheckPrivate(dir)
}

// cacheEntry is a folder with the code of one module. As long as it is open, no process deletes it.
type cacheEntry struct {
	dir   string
	lock  *os.File
	check func(path string) error // of the folder and each file
}

// open returns the entry of a module after verifying it. The error is fs.ErrNotExist if there is none. A damaged one is
// deleted.
func (c compileCache) open(name string) (*cacheEntry, error) {
	if c.dir == "" {
		return nil, fs.ErrNotExist
	}
	e, err := lockEntry(filepath.Join(c.dir, name), syscall.LOCK_SH|syscall.LOCK_NB)
	if err != nil {
		return nil, err
	}
	manifest, err := readManifest(filepath.Join(e.dir, manifestName))
	if err == nil {
		err = e.verify(manifest)
	}
	if err != nil {
		e.close()
		e.remove()
		return nil, err
	}
	return e, nil
}

// newEntry creates an empty folder in dir, which is the cache or a folder of temporary files.
func (c compileCache) newEntry(dir string) (*cacheEntry, error) {
	if dir == c.dir {
		unlock, err := c.lock()
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	path, err := os.MkdirTemp(dir, tempPrefix)
	if err != nil {
		return nil, err
	}
	return lockEntry(path, syscall.LOCK_SH)
}

// lock excludes other processes for the moment in which a new folder has no lock of its own yet.
func (c compileCache) lock() (unlock func(), _ error) {
	e, err := lockEntry(c.dir, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return e.close, nil
}

func lockEntry(dir string, how int) (*cacheEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) { // it is being deleted
			err = fs.ErrNotExist
		}
		return nil, err
	}
	return &cacheEntry{dir, f, safefile.CheckPrivate}, nil
}

func (e *cacheEntry) close() { _ = e.lock.Close() }

// discard deletes an entry that has not been published.
func (e *cacheEntry) discard() {
	_ = os.RemoveAll(e.dir)
	e.close()
}

// remove deletes the folder if no process uses it.
func (e *cacheEntry) remove() {
	locked, err := lockEntry(e.dir, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return
	}
	locked.discard()
}

// publish completes an entry and renames it, so that other processes find it. If they already do, theirs stays.
func (c compileCache) publish(e *cacheEntry, name string) error {
	if err := e.writeManifest(); err != nil {
		return err
	}
	c.prune()
	path := filepath.Join(c.dir, name)
	err := os.Rename(e.dir, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	if err == nil {
		e.dir = "" // discard deletes nothing
	}
	return err
}

// verify checks that the files in the folder are those of the manifest.
func (e *cacheEntry) verify(want []byte) error {
	have, err := e.digests()
	if err != nil {
		return err
	}
	if !bytes.Equal(want, have) {
		return errors.New("the files do not match the manifest")
	}
	return nil
}

func readManifest(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	return b, err
}

// writeManifest writes the digests of the files in the folder.
func (e *cacheEntry) writeManifest() error {
	sums, err := e.digests()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.dir, manifestName), sums, 0o600)
}

// digests lists digest and path of each file except the manifest, in order of path.
func (e *cacheEntry) digests() ([]byte, error) {
	var b bytes.Buffer
	err := filepath.WalkDir(e.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := e.check(path); err != nil {
			return err
		}
		rel, err := filepath.Rel(e.dir, path)
		if err != nil || d.IsDir() || rel == manifestName {
			return err
		}
		sum, err := fileDigest(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x %s\n", sum, rel)
		if b.Len() > maxManifest {
			return errors.New("too many files")
		}
		return nil
	})
	return b.Bytes(), err
}

func fileDigest(path string) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// prune evicts the oldest entries to make room for one, and deletes what processes that were killed have left.
func (c compileCache) prune() {
	unlock, err := c.lock()
	if err != nil {
		return
	}
	defer unlock()
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	type entry struct {
		cacheEntry
		modTime int64
	}
	var entries []entry
	for _, d := range list {
		info, err := d.Info()
		if err != nil || !d.IsDir() {
			continue
		}
		e := entry{cacheEntry{dir: filepath.Join(c.dir, d.Name())}, info.ModTime().UnixNano()}
		switch {
		case strings.HasPrefix(d.Name(), tempPrefix):
			e.remove()
		case len(d.Name()) == 2*sha256.Size:
			entries = append(entries, e)
		}
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].modTime < entries[j].modTime })
	for len(entries) >= maxEntries {
		entries[0].remove() // one in use is retried next time
		entries = entries[1:]
	}
}
