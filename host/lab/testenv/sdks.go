package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// SDKGuest is the module of an example policy of the SDKs.
type SDKGuest struct{ Language, File string }

// SDKGuests builds an example policy, a folder of sdk/examples, in each language; that in Go is first.
func SDKGuests(t testing.TB, policy string) []SDKGuest {
	t.Helper()
	dir, source := t.TempDir(), filepath.Join(root(t), "sdk", "examples", policy)
	guests := []SDKGuest{{"Go", filepath.Join(Plugins(t, "sdk/examples/"+policy+"/go"), "go.wasm")}}
	build := func(lang string, command func(t testing.TB, file, out string) *exec.Cmd, file string) {
		out := filepath.Join(dir, lang+".wasm")
		if msg, err := command(t, filepath.Join(source, file), out).CombinedOutput(); err != nil || len(msg) > 0 {
			t.Fatalf("%s: %v\n%s", file, err, msg)
		}
		if err := Embed(out, source); err != nil {
			t.Fatal(err)
		}
		guests = append(guests, SDKGuest{lang, out})
	}
	build("C", Clang, "plugin.c")
	build("Rust", Rust, "plugin.rs")
	build("AssemblyScript", AssemblyScript, "plugin.ts")
	return guests
}

// Rust returns the command that compiles a plugin in Rust into the file out. Debian's rustc has the target, that of rustup may
// not.
func Rust(t testing.TB, file, out string) *exec.Cmd {
	t.Helper()
	const rustc = "/usr/bin/rustc"
	RequireProgram(t, rustc, "rustc libstd-rust-dev-wasm32")
	return exec.Command(rustc, "--edition", "2021", "--target", "wasm32-unknown-unknown", "--crate-type", "cdylib",
		"-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols", "-D", "warnings", "-o", out, file)
}

// AssemblyScript returns the command that compiles a plugin in AssemblyScript into the file out, with the compiler of new
// plugins.
func AssemblyScript(t testing.TB, file, out string) *exec.Cmd {
	t.Helper()
	templates, dir := filepath.Join(root(t), "host", "plugin", "scaffold", "templates", "as"), t.TempDir()
	lock := filepath.Join(templates, "package-lock.json.tmpl")
	RequireProgram(t, "npm", "npm")
	NPM(t, lock)
	for from, to := range map[string]string{lock: "package-lock.json", filepath.Join(templates, "package.json.tmpl"): "package.json"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install := exec.Command("npm", "ci", "--silent", "--no-audit", "--no-fund")
	install.Dir = dir
	if msg, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, msg)
	}
	return exec.Command(filepath.Join(dir, "node_modules", ".bin", "asc"), file, "-o", out, "-O3", "--runtime", "stub", "--use", "abort=")
}
