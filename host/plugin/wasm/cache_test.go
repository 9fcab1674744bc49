package wasm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompileCache(t *testing.T) {
	module := cGuest(t, "testdata/inputs/c/inputs.c") // machine code of more than a page
	dir := filepath.Join(t.TempDir(), "cache")
	var log bytes.Buffer
	try := func(want bool, warns bool) {
		t.Helper()
		log.Reset()
		p := load(t, newHost(t, Options{CacheDir: dir, Log: textLog(&log)}), module, "")
		if err := decide(p, 80, sampleNow); err != nil {
			t.Fatal(err)
		}
		if p.Report().FromCache != want {
			t.Errorf("from cache: %v, want %v", p.Report().FromCache, want)
		}
		if got := strings.Contains(log.String(), "compile cache"); got != warns {
			t.Errorf("log: %q", log.String())
		}
		p.Close()
	}
	try(false, false)
	try(true, false)
	damage := func(name string, f func(b []byte) []byte) {
		t.Helper()
		file := onlyFile(t, dir, name)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, f(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{codeName, restName, enginePrefix + "*", outlineName, infoName, memoryName} {
		damage(name, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		try(false, true)
		try(true, false)
		damage(name, func(b []byte) []byte { return b[:len(b)/2] })
		try(false, true)
		damage(name, func([]byte) []byte { return nil })
		try(false, true)
	}
	if err := os.Remove(onlyFile(t, dir, manifestName)); err != nil {
		t.Fatal(err)
	}
	try(false, false) // like an interrupted write
	if err := os.Chmod(onlyFile(t, dir, codeName), 0o666); err != nil {
		t.Fatal(err)
	}
	try(false, true)
	try(true, false)
	for _, name := range []string{codeName, memoryName, "."} { // who owns a file that is mapped can truncate it
		if os.Getuid() != 0 {
			continue
		}
		if err := os.Chown(filepath.Join(filepath.Dir(onlyFile(t, dir, codeName)), name), 65534, -1); err != nil {
			t.Fatal(err)
		}
		try(false, true)
		try(true, false)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	try(false, true) // others could have put code there: not used
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	try(false, true)
}

func TestCacheEvictsTheOldestModules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := newHost(t, Options{CacheDir: dir})
	for i := range maxEntries + 5 {
		text := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), ";; EVIL",
			fmt.Sprintf("(func $evil (param i32 i32 i64) (result i64) (i64.const %d))", i), 1)
		p := load(t, h, wat(t, text), "")
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != maxEntries {
		t.Errorf("%d entries: %v", len(list), err)
	}
}

func verify(e *cacheEntry) error {
	manifest, err := readManifest(filepath.Join(e.dir, manifestName))
	if err != nil {
		return err
	}
	return e.verify(manifest)
}

// FuzzCacheEntry: whatever is in the folder of an entry, it is used only if it is what was written.
func FuzzCacheEntry(f *testing.F) {
	const code = "compiled code"
	f.Add([]byte(nil), []byte(code), "wazero-1/code")
	f.Add([]byte("00 wazero-1/code\n"), []byte(code), "wazero-1/code")
	f.Add(bytes.Repeat([]byte("x"), 1<<17), []byte(code), "other")
	c := compileCache{dir: f.TempDir()}
	if err := os.Chmod(c.dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, manifest, content []byte, name string) {
		e, err := c.newEntry(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer e.discard()
		if !filepath.IsLocal(name) || name == "." || strings.ContainsRune(name, 0) {
			t.Skip("not a name")
		}
		path := filepath.Join(e.dir, name)
		if os.MkdirAll(filepath.Dir(path), 0o700) != nil || os.WriteFile(path, content, 0o600) != nil {
			t.Skip("not a name")
		}
		if err := e.writeManifest(); err != nil {
			t.Skip(err)
		}
		if err := verify(e); err != nil {
			t.Fatalf("a complete entry: %v", err)
		}
		want, err := os.ReadFile(filepath.Join(e.dir, manifestName))
		if err != nil {
			t.Skip("the code has the name of the manifest")
		}
		if err := os.WriteFile(filepath.Join(e.dir, manifestName), manifest, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(e); (err == nil) != bytes.Equal(manifest, want) {
			t.Errorf("manifest %q instead of %q: %v", manifest, want, err)
		}
		if err := os.WriteFile(path, append(content, 'x'), 0o600); err != nil {
			t.Fatal(err)
		}
		if name != manifestName && verify(e) == nil {
			t.Error("changed code is accepted")
		}
	})
}
