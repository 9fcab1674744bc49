package scaffold

import (
	"bytes"
	"errors"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// checkout is this checkout.
func checkout(t *testing.T) SDK {
	t.Helper()
	sdk, err := FindSDK("", "(devel)", ".")
	if err != nil {
		t.Fatal(err)
	}
	return sdk
}

func create(t *testing.T, dir, lang string, empty bool) string {
	t.Helper()
	l, ok := Find(lang)
	if !ok {
		t.Fatalf("no language %s", lang)
	}
	folder, err := (&Plugin{Name: "near", Lang: l, SDK: checkout(t), Empty: empty}).Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// A new plugin of each language builds without warnings. cmd/sluice tests what it does.
func TestNewPluginsBuild(t *testing.T) {
	for _, l := range Languages() {
		t.Run(l.Name, func(t *testing.T) {
			t.Setenv("PATH", "/usr/bin"+string(filepath.ListSeparator)+os.Getenv("PATH")) // Debian's rustc has the target, that of rustup may not
			for i := range l.Tools {
				testenv.Require(t, l.Tools[i].check(t.Context()))
			}
			if l.Name == "as" {
				testenv.NPM(t, "templates/as/package-lock.json.tmpl")
			}
			first := checkBuild(t, &l, false, "")
			checkBuild(t, &l, true, filepath.Join(first, "node_modules"))
		})
	}
}

// checkBuild builds a new plugin and runs its native tests. It moves what npm has installed for another one, if anything, to the
// new plugin.
func checkBuild(t *testing.T, l *Language, empty bool, installed string) (dir string) {
	t.Helper()
	// A folder whose path has to be quoted.
	parent := filepath.Join(t.TempDir(), "my [new] plugins")
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir = create(t, parent, l.Name, empty)
	if err := os.Rename(installed, filepath.Join(dir, filepath.Base(installed))); installed != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var log bytes.Buffer
	module, err := Build(t.Context(), dir, &log)
	if err != nil || module != filepath.Join(dir, "near.wasm") {
		t.Fatalf("%s, %v\n%s", module, err, &log)
	}
	var want []string
	for _, c := range l.Commands("near") {
		want = append(want, c.String())
	}
	if got := strings.Split(strings.TrimSpace(log.String()), "\n"); !slices.Equal(got, want) {
		t.Errorf("a build printed %q, want only its commands: %q", got, want)
	}
	makefile, err := os.ReadFile(filepath.Join(dir, "Makefile"))
	if err != nil || !strings.Contains(string(makefile), "\nbuild:\n\t"+strings.Join(want, "\n\t")+"\n") {
		t.Errorf("%v; the Makefile does not have the commands %q:\n%s", err, want, makefile)
	}
	for _, words := range l.tests {
		if l.Name == "go" { // TestNewGoPluginPassesVetAndItsTests
			break
		}
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = dir
		if words[0] == "./plugin_test" {
			cmd.Path = filepath.Join(dir, "plugin_test")
		}
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
			t.Errorf("%s: %v\n%s", words, err, out)
		}
	}
	return dir
}

func TestNewGoPluginPassesVetAndItsTests(t *testing.T) {
	for _, empty := range []bool{false, true} {
		checkGo(t, create(t, t.TempDir(), "go", empty))
	}
}

func checkGo(t *testing.T, dir string) {
	t.Helper()
	run := func(args ...string) string {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off") // nothing is downloaded
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("mod", "tidy", "-diff")
	run("vet", ".")
	run("test", ".")
	// Neither Kubernetes nor anything else but the SDK.
	if got := strings.Fields(run("list", "-m", "-f", "{{.Path}}", "all")); !slices.Equal(got, []string{"example.com/near", Module}) {
		t.Errorf("modules %q", got)
	}
}

func TestTextOfNewPluginsIsFormatted(t *testing.T) {
	for i := range 2 * len(Languages()) {
		l := Languages()[i/2]
		p := Plugin{Name: "a-long-name-of-a-plugin", Lang: l, SDK: SDK{Version: "v1.2.3"}, Empty: i%2 == 1}
		files, err := p.Files()
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if !bytes.HasSuffix(text, []byte("\n")) || bytes.HasSuffix(text, []byte("\n\n")) || bytes.Contains(text, []byte("{{")) || bytes.Contains(text, []byte(" \n")) {
				t.Errorf("%s: %s:\n%s", l.Name, name, text)
			}
			if filepath.Ext(name) != ".go" {
				continue
			}
			if want, err := format.Source(text); err != nil || !bytes.Equal(want, text) {
				t.Errorf("%s: gofmt changes %s: %v", l.Name, name, err)
			}
		}
		for _, a := range l.About {
			if files[a.Name] == nil {
				t.Errorf("%s: the README has %s, which is not there", l.Name, a.Name)
			}
		}
	}
}

func TestReleaseRequiresItsVersionOfTheSDK(t *testing.T) {
	l, _ := Find("go")
	sdk, err := FindSDK("", "v1.2.3", t.TempDir())
	if err != nil || sdk != (SDK{Version: "v1.2.3"}) {
		t.Fatalf("%+v, %v", sdk, err)
	}
	files, err := (&Plugin{Name: "near", Lang: l, SDK: sdk}).Files()
	if err != nil {
		t.Fatal(err)
	}
	mod, readme := string(files["go.mod"]), string(files["README.md"])
	if !strings.Contains(mod, "require "+Module+" v1.2.3\n") || strings.Contains(mod, "replace") || !strings.Contains(readme, "requires "+Module+" v1.2.3") {
		t.Errorf("%s\n%s", mod, readme)
	}
}

func TestSDKIsFoundOrAskedFor(t *testing.T) {
	here := checkout(t).Dir
	for _, version := range []string{"(devel)", "unknown", "v0.1.0-3-gabcdef0", "v1.2.3-dirty", "v0.0.0-20260101000000-abcdefabcdef"} {
		if sdk, err := FindSDK("", version, "templates/go"); err != nil || sdk.Dir != here {
			t.Errorf("%s: %+v, %v", version, sdk, err)
		}
		if _, err := FindSDK("", version, t.TempDir()); err == nil || !strings.Contains(err.Error(), version+", is no release") {
			t.Errorf("%s: %v", version, err)
		}
	}
	if sdk, err := FindSDK("../../..", "v1.2.3", t.TempDir()); err != nil || sdk.Dir != here {
		t.Errorf("%+v, %v", sdk, err)
	}
	if _, err := FindSDK(t.TempDir(), "v1.2.3", "."); err == nil || !strings.Contains(err.Error(), "not a checkout of "+Repository) {
		t.Error(err)
	}
}

func TestBadNamesAndExistingFoldersAreRefused(t *testing.T) {
	l, _ := Find("c")
	for _, name := range []string{"", "-", "a-", "-a", "A", "a b", "a/b", "../a", ".", "a.b", "1a", "ä", "a\n", strings.Repeat("a", 64), "true", "null", "on", "y"} {
		if _, err := (&Plugin{Name: name, Lang: l}).Create(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not a name of a plugin") {
			t.Errorf("%q: %v", name, err)
		}
	}
	dir := t.TempDir()
	p := &Plugin{Name: strings.Repeat("a", 63), Lang: l}
	if _, err := p.Create(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(dir); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Error(err)
	}
	if _, err := p.Create(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestBuildSaysWhatIsMissing(t *testing.T) {
	dir := create(t, t.TempDir(), "c", false)
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		if _, err := Build(t.Context(), dir, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	want("a plugin in C needs clang, lld and the headers of the C library: no clang in the PATH: on Debian, apt-get install clang lld libc6-dev")
	script("clang", "echo wasm-ld")
	want("clang does not find its linker wasm-ld: on Debian, apt-get install clang lld libc6-dev")
	script("wasm-ld", "")
	script("clang", "echo wasm-ld; case $1 in -print*) ;; *) exit 3;; esac")
	want("clang: exit status 3")
	dir = create(t, t.TempDir(), "rust", false)
	want("a plugin in Rust needs rustc with the target wasm32-unknown-unknown: no rustc in the PATH: ")
	script("rustc", "echo "+bin+"/wasm32-unknown-unknown/lib")
	want("rustc does not find the target wasm32-unknown-unknown: rustup target add wasm32-unknown-unknown, or on Debian, apt-get install rustc libstd-rust-dev-wasm32")
	if _, err := Build(t.Context(), bin, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no plugin: want one of assembly/index.ts (AssemblyScript), *.c (C), go.mod (Go), src/lib.rs (Rust)") {
		t.Error(err)
	}
	if _, err := Build(t.Context(), filepath.Join(bin, "none"), &bytes.Buffer{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
