package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

var at = time.Unix(1_700_000_000, 0).UTC()

const tag = "v1.2.3"

func sample() Layout {
	image := func(arch string) Image {
		return Image{Platform: v1.Platform{OS: "linux", Architecture: arch}, Config: v1.ImageConfig{Entrypoint: []string{"/sluice"}}, Files: []File{
			{Name: "sluice", Mode: 0o755, Body: []byte("binary of " + arch)},
			{Name: "plugins/locality.wasm", Mode: 0o644, Body: []byte("\x00asm")},
			{Name: "licenses/go/LICENSE", Mode: 0o644, Body: bytes.Repeat([]byte("license "), 1000)},
		}}
	}
	index := Index{
		Names:       []map[string]string{{v1.AnnotationRefName: tag}, {v1.AnnotationRefName: "latest"}},
		Annotations: map[string]string{v1.AnnotationTitle: "sluice"},
		Images:      []Image{image("amd64"), image("arm64")},
	}
	return Layout{Indexes: []Index{index}, Created: at, Level: gzip.DefaultCompression}
}

func write(t *testing.T, l Layout, dir string) digest.Digest {
	t.Helper()
	sums, err := l.Write(t.Context(), dir)
	if err != nil || len(sums) != len(l.Indexes) {
		t.Fatal(sums, err)
	}
	return sums[0]
}

// fetch resolves a tag for a platform and reads its manifest, configuration and layer.
func fetch(t *testing.T, from oras.ReadOnlyTarget, tag, arch string) (m v1.Manifest, c v1.Image, layer []byte) {
	t.Helper()
	desc, err := oras.Resolve(t.Context(), from, tag, oras.ResolveOptions{TargetPlatform: &v1.Platform{OS: "linux", Architecture: arch}})
	if err != nil {
		t.Fatal(err)
	}
	read := func(d v1.Descriptor) []byte {
		body, err := content.FetchAll(t.Context(), from, d) // checks size and digest
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	if err := errors.Join(json.Unmarshal(read(desc), &m), json.Unmarshal(read(m.Config), &c)); err != nil {
		t.Fatal(err)
	}
	return m, c, read(m.Layers[0])
}

func TestEveryNameResolvesForEachPlatform(t *testing.T) {
	l, dir := sample(), filepath.Join(t.TempDir(), "image")
	other := l.Indexes[0]
	other.Names = []map[string]string{{v1.AnnotationRefName: "other"}}
	other.Images = slices.Clone(other.Images)
	other.Images[0].Config.Cmd, other.Images[1].Config.Cmd = []string{"serve"}, []string{"serve"}
	l.Indexes = append(l.Indexes, other)
	sums, err := l.Write(t.Context(), dir)
	if err != nil || sums[0] == sums[1] {
		t.Fatal(sums, err)
	}
	store, err := oci.NewFromFS(t.Context(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]digest.Digest{tag: sums[0], "latest": sums[0], "other": sums[1]} {
		if index, err := store.Resolve(t.Context(), tag); err != nil || index.Digest != want || index.MediaType != v1.MediaTypeImageIndex {
			t.Errorf("%s resolves to %+v, %v; reported digest %s", tag, index, err, want)
		}
		for _, arch := range []string{"amd64", "arm64"} {
			m, c, layer := fetch(t, store, tag, arch)
			if c.OS != "linux" || c.Architecture != arch || !slices.Equal(c.Config.Entrypoint, []string{"/sluice"}) ||
				(len(c.Config.Cmd) > 0) != (tag == "other") || !c.Created.Equal(at) || m.Annotations[v1.AnnotationTitle] != "sluice" {
				t.Errorf("%s, %s: config %+v, annotations %v", tag, arch, c, m.Annotations)
			}
			plain, err := gunzip(layer)
			if err != nil {
				t.Fatal(err)
			}
			if got := digest.FromBytes(plain); !slices.Equal(c.RootFS.DiffIDs, []digest.Digest{got}) {
				t.Errorf("%s, %s: diff ids %v, the layer is %s", tag, arch, c.RootFS.DiffIDs, got)
			}
			if !bytes.Contains(plain, []byte("binary of "+arch)) {
				t.Errorf("%s, %s: not its own binary", tag, arch)
			}
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || fmt.Sprint(names(list)) != "[blobs index.json oci-layout]" {
		t.Errorf("the layout has %v, %v", names(list), err)
	}
}

func names(list []os.DirEntry) (out []string) {
	for _, d := range list {
		out = append(out, d.Name())
	}
	return out
}

func gunzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestLayerFilesAreSortedAndOwnedByRoot(t *testing.T) {
	files := append(sample().Indexes[0].Images[0].Files, File{Name: "tmp/", Mode: 0o1777}, File{Name: "bin", Link: "usr/bin"})
	for _, level := range []int{gzip.DefaultCompression, gzip.NoCompression} {
		l, err := newLayer(files, at, level)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := gunzip(l.gzip)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for r := tar.NewReader(bytes.NewReader(plain)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %o %s", h.Name, h.Mode, h.Linkname), " "))
			if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(at) {
				t.Errorf("%s: %+v", h.Name, h)
			}
		}
		want := "bin 777 usr/bin|licenses/ 755|licenses/go/ 755|licenses/go/LICENSE 644|plugins/ 755|plugins/locality.wasm 644|sluice 755|tmp/ 1777"
		if strings.Join(got, "|") != want {
			t.Errorf("level %d: got  %s\nwant %s", level, strings.Join(got, "|"), want)
		}
	}
}

func TestDigestDoesNotDependOnFileOrder(t *testing.T) {
	dir := t.TempDir()
	l := sample()
	images := l.Indexes[0].Images
	var archives [][]byte
	var sums []digest.Digest
	for _, name := range []string{"one", "two"} {
		sums = append(sums, write(t, l, filepath.Join(dir, name)))
		archive := filepath.Join(dir, name+".tar")
		if err := Archive(filepath.Join(dir, name), archive, at); err != nil {
			t.Fatal(err)
		}
		body, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, body)
		slices.Reverse(images[0].Files)
	}
	if sums[0] != sums[1] || !bytes.Equal(archives[0], archives[1]) {
		t.Errorf("%s, then %s; the archives are equal: %t", sums[0], sums[1], bytes.Equal(archives[0], archives[1]))
	}
	images[1].Files[0].Body = []byte("x")
	if third := write(t, l, filepath.Join(dir, "two")); third == sums[0] {
		t.Error("another binary, and the same digest")
	}
}

func TestArchiveContainsLayout(t *testing.T) {
	dir := t.TempDir()
	sum := write(t, sample(), filepath.Join(dir, "image"))
	to := filepath.Join(dir, "image.tar")
	if err := Archive(filepath.Join(dir, "image"), to, at); err != nil {
		t.Fatal(err)
	}
	store, err := oci.NewFromTar(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), tag); err != nil || index.Digest != sum {
		t.Errorf("%v, %v", index.Digest, err)
	}
	fetch(t, store, tag, "arm64")
	if left, _ := filepath.Glob(filepath.Join(dir, ".image-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOnlyLayoutsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	l, to := sample(), filepath.Join(dir, "image")
	write(t, l, to)
	l.Indexes[0].Images[0].Files[0].Body = []byte("newer")
	sum := write(t, l, to)
	store, err := oci.NewFromFS(t.Context(), os.DirFS(to))
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), tag); err != nil || index.Digest != sum {
		t.Errorf("%v, %v", index.Digest, err)
	}
	precious := filepath.Join(dir, "home")
	if err := errors.Join(os.Mkdir(precious, 0o755), os.WriteFile(filepath.Join(precious, "thesis"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write(t.Context(), precious); err == nil || !strings.Contains(err.Error(), "not replaced") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(precious, "thesis")); err != nil {
		t.Error(err)
	}
}

func TestInvalidFileNamesAreRejected(t *testing.T) {
	for _, files := range [][]File{
		{{Name: "/sluice"}}, {{Name: "../sluice"}}, {{Name: "a//b"}}, {{Name: "a"}, {Name: "a"}}, {{Name: "a/"}, {Name: "a"}}, {{Name: "a/"}, {Name: "a/"}},
		{{Name: "bin", Link: "usr/bin"}, {Name: "bin/sh"}},
	} {
		if _, err := newLayer(files, at, gzip.NoCompression); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
}
