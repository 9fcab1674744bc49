package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
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

func sample(out string) (options, []image) {
	o := options{out: out, tag: "v1.2.3", version: "v1.2.3", revision: "abc", created: at}
	files := func(arch string) []file {
		return []file{
			{"sluice", 0o755, []byte("binary of " + arch)},
			{"plugins/zone-spill.wasm", 0o644, []byte("\x00asm")},
			{"licenses/go/LICENSE", 0o644, bytes.Repeat([]byte("license "), 1000)},
		}
	}
	return o, []image{{platform{"linux", "amd64"}, files("amd64")}, {platform{"linux", "arm64"}, files("arm64")}}
}

func write(t *testing.T, o options, images []image) digest.Digest {
	t.Helper()
	sum, err := writeLayout(t.Context(), o, images)
	if err != nil {
		t.Fatal(err)
	}
	return sum
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

func TestTagResolvesForEachPlatform(t *testing.T) {
	o, images := sample(filepath.Join(t.TempDir(), "image"))
	sum := write(t, o, images)
	store, err := oci.NewFromFS(t.Context(), os.DirFS(o.out))
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), o.tag); err != nil || index.Digest != sum || index.MediaType != v1.MediaTypeImageIndex {
		t.Errorf("tag resolves to %+v, %v; reported digest %s", index, err, sum)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		m, c, layer := fetch(t, store, o.tag, arch)
		if c.OS != "linux" || c.Architecture != arch || !slices.Equal(c.Config.Entrypoint, []string{"/sluice"}) || c.Config.User != "0:0" || !c.Created.Equal(at) {
			t.Errorf("%s: config %+v", arch, c)
		}
		for _, annotations := range []map[string]string{m.Annotations, c.Config.Labels} {
			if annotations[v1.AnnotationVersion] != o.version || annotations[v1.AnnotationRevision] != o.revision ||
				annotations[v1.AnnotationLicenses] != "Apache-2.0" || annotations[v1.AnnotationCreated] != "2023-11-14T22:13:20Z" {
				t.Errorf("%s: annotations %v", arch, annotations)
			}
		}
		plain, err := gunzip(layer)
		if err != nil {
			t.Fatal(err)
		}
		if got := digest.FromBytes(plain); !slices.Equal(c.RootFS.DiffIDs, []digest.Digest{got}) {
			t.Errorf("%s: diff ids %v, the layer is %s", arch, c.RootFS.DiffIDs, got)
		}
		if !bytes.Contains(plain, []byte("binary of "+arch)) {
			t.Errorf("%s: not its own binary", arch)
		}
	}
	list, err := os.ReadDir(o.out)
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
	_, images := sample("")
	l, err := newLayer(images[0].files, at)
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
		got = append(got, fmt.Sprintf("%s %o", h.Name, h.Mode))
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(at) {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
	want := "licenses/ 755|licenses/go/ 755|licenses/go/LICENSE 644|plugins/ 755|plugins/zone-spill.wasm 644|sluice 755"
	if strings.Join(got, "|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
}

func TestDigestDoesNotDependOnFileOrder(t *testing.T) {
	dir := t.TempDir()
	o, images := sample(filepath.Join(dir, "one"))
	first := write(t, o, images)
	if err := archive(o.out, filepath.Join(dir, "one.tar"), at); err != nil {
		t.Fatal(err)
	}
	o.out = filepath.Join(dir, "two")
	slices.Reverse(images[0].files)
	if second := write(t, o, images); second != first {
		t.Errorf("%s, then %s", first, second)
	}
	if err := archive(o.out, filepath.Join(dir, "two.tar"), at); err != nil {
		t.Fatal(err)
	}
	one, err1 := os.ReadFile(filepath.Join(dir, "one.tar"))
	two, err2 := os.ReadFile(filepath.Join(dir, "two.tar"))
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(one, two) {
		t.Errorf("the archives differ: %v", err)
	}
	images[1].files[0].body = []byte("x")
	if third := write(t, o, images); third == first {
		t.Error("another binary, and the same digest")
	}
}

func TestArchiveContainsLayout(t *testing.T) {
	dir := t.TempDir()
	o, images := sample(filepath.Join(dir, "image"))
	sum := write(t, o, images)
	to := filepath.Join(dir, "image.tar")
	if err := archive(o.out, to, at); err != nil {
		t.Fatal(err)
	}
	store, err := oci.NewFromTar(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), o.tag); err != nil || index.Digest != sum {
		t.Errorf("%v, %v", index.Digest, err)
	}
	fetch(t, store, o.tag, "arm64")
	if left, _ := filepath.Glob(filepath.Join(dir, ".image-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOnlyLayoutsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	o, images := sample(filepath.Join(dir, "image"))
	write(t, o, images)
	images[0].files[0].body = []byte("newer")
	sum := write(t, o, images)
	store, err := oci.NewFromFS(t.Context(), os.DirFS(o.out))
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), o.tag); err != nil || index.Digest != sum {
		t.Errorf("%v, %v", index.Digest, err)
	}
	precious := filepath.Join(dir, "home")
	if err := errors.Join(os.Mkdir(precious, 0o755), os.WriteFile(filepath.Join(precious, "thesis"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	o.out = precious
	if _, err := writeLayout(context.Background(), o, images); err == nil || !strings.Contains(err.Error(), "not replaced") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(precious, "thesis")); err != nil {
		t.Error(err)
	}
}

func TestInvalidFileNamesAreRejected(t *testing.T) {
	for _, files := range [][]file{{{name: "/sluice"}}, {{name: "../sluice"}}, {{name: "a//b"}}, {{name: "a"}, {name: "a"}}} {
		if _, err := newLayer(files, at); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
}

func TestInvalidArgumentsAreRejected(t *testing.T) {
	for _, c := range []struct{ args, text string }{
		{"-tag a/b", "-tag"},
		{"-version v1+2", "-tag"},
		{"-time yesterday", "-time"},
		{"-platforms linux", "-platforms"},
		{"-platforms windows/amd64", "-platforms"},
		{"-compiled amd64", "-compiled"},
		{"more", "unexpected"},
	} {
		if _, err := parse(strings.Fields(c.args), io.Discard); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o, err := parse([]string{"-version", "v1"}, io.Discard)
	if err != nil || o.tag != "v1" || !o.created.Equal(at) || len(o.platforms) != 2 || !slices.Equal(o.compiled, o.platforms[:1]) {
		t.Errorf("%+v, %v", o, err)
	}
}
