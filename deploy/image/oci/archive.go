// Package oci writes container images as OCI image layouts and archives, without a container runtime. The same input produces the
// same digest.
package oci

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Pack returns files and their parent directories as a compressed tar archive, sorted by name, with at as all timestamps (zero:
// 1970).
func Pack(files []File, at time.Time) ([]byte, error) {
	l, err := newLayer(files, at, gzip.DefaultCompression)
	return l.gzip, err
}

// Archive writes a layout as a tar file, with at as all timestamps (zero: 1970). An existing file is replaced after the new one
// is complete.
func Archive(layout, to string, at time.Time) (err error) {
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".image-")
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	defer os.Remove(f.Name()) // fails after the rename, when nothing is left to remove
	w := tar.NewWriter(f)
	err = filepath.WalkDir(layout, func(path string, d fs.DirEntry, err error) error { // by name
		if err != nil {
			return err
		}
		name, err := filepath.Rel(layout, path)
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: filepath.ToSlash(name) + "/", Mode: 0o755, ModTime: at})
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(body)), ModTime: at}); err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	})
	err = errors.Join(err, w.Close(), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", to, err)
	}
	return nil
}
