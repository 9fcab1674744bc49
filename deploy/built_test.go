package deploy

import (
	"debug/elf"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImageIsReproducible builds the image a second time from another directory, as on another machine.
func TestImageIsReproducible(t *testing.T) {
	one := sharedImage(t)
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "somewhere", "else")
	if err := copySources(built.sources(), elsewhere); err != nil {
		t.Fatal(err)
	}
	two, err := buildImage(t.Context(), elsewhere, filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(one.digest, "sha256:") || one.digest != two.digest {
		t.Errorf("%s, then %s", one.digest, two.digest)
	}
	a, err := os.ReadFile(one.layout + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(two.layout + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Error("the archives differ")
	}
	t.Logf("%s, %d bytes", one.digest, len(a))
}

func TestImageContents(t *testing.T) {
	img := sharedImage(t)
	var got []string
	err := fs.WalkDir(os.DirFS(img.root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(path, "licenses/") && !strings.HasPrefix(path, "compiled/") {
			info, err := d.Info()
			if err != nil {
				return err
			}
			got = append(got, path)
			t.Logf("%s: %d bytes", path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"sluice"}
	mains, err := filepath.Glob("../plugins/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mains {
		want = append(want, "plugins/"+filepath.Base(filepath.Dir(m))+".wasm")
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	for _, name := range []string{"go/LICENSE", "github.com/sluice-proxy/sluice/LICENSE", "github.com/tetratelabs/wazero/LICENSE", "k8s.io/api/LICENSE"} {
		if _, err := os.Stat(filepath.Join(img.root, "licenses", name)); err != nil {
			t.Error(err)
		}
	}
	binary, err := elf.Open(filepath.Join(img.root, "sluice"))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("dynamic libraries: %v, %v", libraries, err)
	}
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("binary needs a dynamic loader")
		}
	}
}
