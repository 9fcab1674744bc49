package main

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

// file is a file in the image, owned by root.
type file struct {
	name string // without a slash in front
	mode int64
	body []byte
}

// layer is a compressed tar archive.
type layer struct {
	gzip   []byte
	diffID digest.Digest // of the archive before it was compressed
}

// newLayer archives files and their parent directories, sorted by name, all with the same modification time.
func newLayer(files []file, at time.Time) (layer, error) {
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	zip := gzip.NewWriter(&out) // without name or time
	plain := sha256.New()
	w := tar.NewWriter(io.MultiWriter(zip, plain))
	folders := map[string]bool{".": true}
	for i, f := range files {
		if f.name != path.Clean(f.name) || path.IsAbs(f.name) || strings.HasPrefix(f.name, "..") {
			return layer{}, fmt.Errorf("layer: invalid file name %q", f.name)
		}
		if i > 0 && files[i-1].name == f.name {
			return layer{}, fmt.Errorf("layer: %s: duplicate file name", f.name)
		}
		if err := addFolders(w, folders, path.Dir(f.name), at); err != nil {
			return layer{}, fmt.Errorf("layer: %s: %w", f.name, err)
		}
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.body)), ModTime: at})
		if err == nil {
			_, err = w.Write(f.body)
		}
		if err != nil {
			return layer{}, fmt.Errorf("layer: %s: %w", f.name, err)
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
	if done[dir] {
		return nil
	}
	if err := addFolders(w, done, path.Dir(dir), at); err != nil {
		return err
	}
	done[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at})
}
