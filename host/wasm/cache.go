package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"syscall"
)

// The compile cache has a folder per rewritten module, named by its digest. It contains the files of wazero, named by
// wazero's version and the features of the CPU, and a manifest with their digests. wazero trusts the sizes and offsets in
// its files and checks only the code, so a folder whose manifest does not match is deleted, not read.

const (
	manifestName = "MANIFEST"
	maxEntries   = 32 // modules; the oldest are evicted
)

// checkCacheDir creates dir if necessary and checks that no other user can have put code there.
func checkCacheDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return checkPrivate(dir)
}

// checkPrivate checks that path is a regular file or folder of this user: a folder that others cannot access, or a file that
// others cannot write.
func checkPrivate(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	switch sys, ok := st.Sys().(*syscall.Stat_t); {
	case !st.IsDir() && !st.Mode().IsRegular():
		return fmt.Errorf("%s is neither a folder nor a file", path)
	case !ok || int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user", path)
	case st.Mode().Perm()&0o077 != 0 && st.IsDir():
		return fmt.Errorf("%s has mode %#o: others can reach it, want 0700", path, st.Mode().Perm())
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s has mode %#o: others can write it", path, st.Mode().Perm())
	}
	return nil
}

type cacheEntry struct {
	dir      string
	verified bool // it existed and its manifest matches
}

// openEntry finds or creates the folder for a module; nil: no cache.
func openEntry(cacheDir string, metered []byte, log *slog.Logger) *cacheEntry {
	if cacheDir == "" {
		return nil
	}
	sum := sha256.Sum256(metered)
	e := &cacheEntry{dir: filepath.Join(cacheDir, hex.EncodeToString(sum[:]))}
	switch err := e.verify(); {
	case err == nil:
		e.verified = true
		return e
	case !errors.Is(err, fs.ErrNotExist):
		log.Warn("compile cache entry deleted", "dir", e.dir, "err", err)
	}
	e.remove()
	prune(cacheDir)
	if err := os.Mkdir(e.dir, 0o700); err != nil {
		log.Warn("compile cache not used", "dir", e.dir, "err", err)
		return nil
	}
	return e
}

func (e *cacheEntry) remove() {
	e.verified = false
	_ = os.RemoveAll(e.dir) // leftovers have no manifest, so they are not used
}

func (e *cacheEntry) verify() error {
	if err := checkPrivate(e.dir); err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(e.dir, manifestName))
	if err != nil {
		return err
	}
	have, err := e.digests()
	if err != nil {
		return err
	}
	if !bytes.Equal(want, have) {
		return errors.New("the files do not match the manifest")
	}
	return nil
}

// writeManifest writes the digests of the files in the folder.
func (e *cacheEntry) writeManifest() error {
	sums, err := e.digests()
	if err != nil {
		return err
	}
	tmp := filepath.Join(e.dir, manifestName+".tmp")
	if err := os.WriteFile(tmp, sums, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(e.dir, manifestName))
}

// digests lists digest and path of each file except the manifest, in order of path.
func (e *cacheEntry) digests() ([]byte, error) {
	var b bytes.Buffer
	err := filepath.WalkDir(e.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := checkPrivate(path); err != nil {
			return err
		}
		rel, err := filepath.Rel(e.dir, path)
		if err != nil || d.IsDir() || rel == manifestName || rel == manifestName+".tmp" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x %s\n", sha256.Sum256(content), rel)
		return nil
	})
	return b.Bytes(), err
}

// prune evicts the oldest entries to make room for one.
func prune(cacheDir string) {
	list, err := os.ReadDir(cacheDir)
	if err != nil {
		return
	}
	type entry struct {
		name    string
		modTime int64
	}
	var entries []entry
	for _, d := range list {
		if info, err := d.Info(); err == nil && d.IsDir() && len(d.Name()) == 2*sha256.Size {
			entries = append(entries, entry{d.Name(), info.ModTime().UnixNano()})
		}
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].modTime < entries[j].modTime })
	for len(entries) >= maxEntries {
		_ = os.RemoveAll(filepath.Join(cacheDir, entries[0].name)) // retried next time
		entries = entries[1:]
	}
}
