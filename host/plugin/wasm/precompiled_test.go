package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// precompile compiles a module into a folder with the modes of sluice's image.
func precompile(t *testing.T, module []byte) Precompiled {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "compiled")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pair, err := Precompile(t.Context(), dir, module)
	if err != nil {
		t.Fatal(err)
	}
	code, err := ParsePrecompiled(dir, pair)
	if err != nil || len(code.Digests) != 1 {
		t.Fatalf("%q: %v, %v", pair, code, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range append(files, dir, filepath.Dir(files[0])) {
		mode := os.FileMode(0o644)
		if !slices.Contains(files, path) {
			mode = 0o755
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	return code
}

// TestPrecompiledCodeIsNotCompiled: with a compiler that only crashes, and without a cache.
func TestPrecompiledCodeIsNotCompiled(t *testing.T) {
	requireChildren(t)
	code := precompile(t, goodWAT(t))
	h := newHost(t, Options{CacheDir: filepath.Join(t.TempDir(), "cache"), Compiler: childCommand("crash"), Precompiled: code})
	p := load(t, h, goodWAT(t), "")
	if r := p.Report(); !r.Precompiled || !r.FromCache {
		t.Errorf("%+v", r)
	}
	checkGood(t, p, sampleNow)
	if entries, err := filepath.Glob(filepath.Join(h.cache.dir, "*")); err != nil || len(entries) > 0 {
		t.Errorf("the cache has %v, %v", entries, err)
	}
	if code.Digests = nil; load(t, newHost(t, Options{Precompiled: code}), goodWAT(t), "").Report().Precompiled {
		t.Error("used without a digest")
	}
}

// TestPrecompiledCodeIsVerified: whoever can write the folder cannot make a program run other code, also with a manifest that
// matches.
func TestPrecompiledCodeIsVerified(t *testing.T) {
	module := cGuest(t, "testdata/inputs/c/inputs.c") // machine code of more than a page
	flip := func(t *testing.T, path string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]func(t *testing.T, dir string){
		"another manifest, which matches": func(t *testing.T, dir string) {
			flip(t, filepath.Join(dir, codeName))
			if err := (&cacheEntry{dir: dir, check: safefile.CheckReadOnly}).writeManifest(); err != nil {
				t.Fatal(err)
			}
		},
		"a file that others can write": func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, codeName), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"an entry that others can write": func(t *testing.T, dir string) {
			if err := os.Chmod(dir, 0o775); err != nil {
				t.Fatal(err)
			}
		},
		"a folder that others can write": func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Dir(dir), 0o777); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, dir string) {
			elsewhere := filepath.Join(t.TempDir(), codeName)
			if err := os.Rename(filepath.Join(dir, codeName), elsewhere); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(elsewhere, filepath.Join(dir, codeName)); err != nil {
				t.Fatal(err)
			}
		},
		"a file too many": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "more"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"no manifest": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, name := range []string{codeName, restName, enginePrefix + "*", outlineName, infoName, memoryName, manifestName} {
		cases["another "+name] = func(t *testing.T, dir string) { flip(t, onlyFile(t, filepath.Dir(dir), name)) }
	}
	if os.Getuid() == 0 {
		cases["a file of another user"] = func(t *testing.T, dir string) {
			if err := os.Chown(filepath.Join(dir, codeName), 1, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			code := precompile(t, module)
			change(t, filepath.Dir(onlyFile(t, code.Dir, infoName)))
			var log bytes.Buffer
			p := load(t, newHost(t, Options{Precompiled: code, Log: textLog(&log)}), module, "")
			if p.Report().Precompiled || name != "no manifest" && !strings.Contains(log.String(), "precompiled code not used") {
				t.Errorf("used: %v; log: %s", p.Report().Precompiled, log.String())
			}
			if err := decide(p, 80, sampleNow); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestParsePrecompiled(t *testing.T) {
	name, digest := strings.Repeat("0a", sha256.Size), strings.Repeat("f1", sha256.Size)
	got, err := ParsePrecompiled("/compiled", name+":"+digest+","+digest+":"+name)
	if err != nil || got.Dir != "/compiled" || len(got.Digests) != 2 || got.Digests[name] != digest {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParsePrecompiled("/compiled", ""); err != nil || len(got.Digests) > 0 {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, text := range []string{"x", name, name + ":", ":" + digest, name + ":" + digest[1:], "../" + name[3:] + ":" + digest, strings.ToUpper(name) + ":" + digest, name + "/" + digest} {
		if got, err := ParsePrecompiled("/compiled", text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestPrecompileIsReproducible: two folders have the same entries.
func TestPrecompileIsReproducible(t *testing.T) {
	skipLongCompile(t)
	one, two := precompile(t, goGuest(t, "testdata/goguest")), precompile(t, goGuest(t, "testdata/goguest"))
	for name, digest := range one.Digests {
		if two.Digests[name] != digest {
			t.Errorf("%s: %s, then %s", name, digest, two.Digests[name])
		}
		manifest, err := os.ReadFile(filepath.Join(one.Dir, name, manifestName))
		if sum := sha256.Sum256(manifest); err != nil || hex.EncodeToString(sum[:]) != digest {
			t.Errorf("%s is the digest of another manifest: %v", digest, err)
		}
	}
}
