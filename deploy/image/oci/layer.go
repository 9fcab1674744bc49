package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256" // also what digest.FromBytes computes with
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// File is a file in an image, owned by root: a regular one, a symbolic link, or an empty directory.
type File struct {
	Name string // without a slash in front; a directory's ends with one
	Mode int64
	Body []byte
	Link string // what a symbolic link points to
}

func (f File) header(at time.Time) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Body)), ModTime: at}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case strings.HasSuffix(f.Name, "/"):
		h.Typeflag = tar.TypeDir
	}
	return h
}

// layer is a compressed tar archive.
type layer struct {
	gzip   []byte
	diffID digest.Digest // of the archive before it was compressed
}

// newLayer archives files and their parent directories, sorted by name, all with the same modification time. level is gzip's.
func newLayer(files []File, at time.Time, level int) (layer, error) {
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, level) // without name or time
	if err != nil {
		return layer{}, fmt.Errorf("layer: %w", err)
	}
	plain := sha256.New()
	w := tar.NewWriter(io.MultiWriter(zip, plain))
	entries := map[string]bool{".": true} // whether it is a directory
	for _, f := range files {
		name := strings.TrimSuffix(f.Name, "/")
		if name != path.Clean(name) || path.IsAbs(name) || strings.HasPrefix(name, "..") {
			return layer{}, fmt.Errorf("layer: invalid file name %q", f.Name)
		}
		if _, ok := entries[name]; ok {
			return layer{}, fmt.Errorf("layer: %s: duplicate file name", f.Name)
		}
		if err := addFolders(w, entries, path.Dir(name), at); err != nil {
			return layer{}, fmt.Errorf("layer: %s: %w", f.Name, err)
		}
		entries[name] = f.Name != name
		if err := w.WriteHeader(f.header(at)); err != nil {
			return layer{}, fmt.Errorf("layer: %s: %w", f.Name, err)
		}
		if _, err := w.Write(f.Body); err != nil {
			return layer{}, fmt.Errorf("layer: %s: %w", f.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return layer{}, fmt.Errorf("layer: %w", err)
	}
	if err := zip.Close(); err != nil {
		return layer{}, fmt.Errorf("layer: %w", err)
	}
	return layer{gzip: out.Bytes(), diffID: digest.NewDigest(digest.SHA256, plain)}, nil
}

// addFolders adds a directory and its parents, once each.
func addFolders(w *tar.Writer, done map[string]bool, dir string, at time.Time) error {
	if folder, ok := done[dir]; ok && !folder {
		return fmt.Errorf("%s is not a directory", dir)
	} else if ok {
		return nil
	}
	if err := addFolders(w, done, path.Dir(dir), at); err != nil {
		return err
	}
	done[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at})
}
