package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// faulty builds testdata/plugins/faulty.
func faulty(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "faulty.wasm")
	if msg, err := testenv.Clang(t, "testdata/plugins/faulty/faulty.c", out).CombinedOutput(); err != nil {
		t.Fatalf("clang: %v\n%s", err, msg)
	}
	if err := testenv.Embed(out, "testdata/plugins/faulty"); err != nil {
		t.Fatal(err)
	}
	return out
}

// What can never work is an error, what is probably not intended a warning. Both say what to do.
func TestPluginCheckFindsFaults(t *testing.T) {
	module := faulty(t)
	for _, c := range []struct{ fault, warning, err string }{
		{"", "", ""},
		{"zero shares", "", `no endpoint has capacity and a share above 0 in the answers to all sample requests: every decision would fail: give a share to at least one`},
		{"wasted shares", "", `only endpoints that are not eligible have a share, in the answers to all sample requests: .*: give a share to endpoints that have the condition`},
		{"terminating only", `no eligible endpoint has capacity and a share above 0 in the answer to sample request "1 endpoint" and \d+ more: .*: give a share to at least one`, ""},
		{"ratios", `shares are rounded to weights with a sum of \d+, and an endpoint gets 0.0997 % of the connections instead of 0.000202 %, ` +
			`in the answer to sample request "100 endpoints" and \d+ more: use shares that differ less`, ""},
		{"least connections", `mode nftables: balance least-connections, in the answer to sample request "1 endpoint", is replaced by random`, ""},
		{"growing state", "", `the state grows: after 128 requests for a Service whose endpoints are replaced one by one it has 1024 bytes, and the next decision fails: remove what .* more than 1024`},
		{"slowly growing state", `the state grows: 64, 128, 192 and 256 bytes after 128, 256, 384 and 512 requests .*; at 1024 bytes, decisions fail: remove what`, ""},
		{"bounded state", "", ""},
		{"calls", "", `sample request "1 endpoint" has two answers: .* first asked in order in a new instance, then each twice in a row in a used instance: .* keep what has to last in the state`},
		{"order", "", `sample request ".*" has two answers: .* the answer depends on earlier calls, .* keep what has to last in the state`},
	} {
		args := []string{module}
		if c.fault != "" {
			args = append(args, "--settings", `{"fault":"`+c.fault+`"}`)
		}
		out, _, err := check(args...)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%q: %v", c.fault, err)
		case c.err != "" && (err == nil || !regexp.MustCompile(c.err).MatchString(err.Error())):
			t.Errorf("%q: got %v, want %q", c.fault, err, c.err)
		case c.err != "" && out != "":
			t.Errorf("%q: printed %s", c.fault, out)
		case c.err == "" && strings.Count(out, "\nwarning: ") != min(1, len(c.warning)):
			t.Errorf("%q: want one warning if any:\n%s", c.fault, out)
		case c.warning != "" && !regexp.MustCompile("\nwarning: "+c.warning).MatchString(out):
			t.Errorf("%q: no warning %q:\n%s", c.fault, c.warning, out)
		}
	}
}

// Modules that are built in the wrong way: each error says how to build them.
func TestPluginCheckSaysHowToBuild(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	feature := func(name, flag, text string) string {
		return write(name, string(testenv.WAT(t, text, flag)))
	}
	for _, c := range []struct{ name, file, want string }{
		{"command", goCommand(t, dir), `a command, not a library: .* build it with -buildmode=c-shared`},
		{"component", write("component.wasm", "\x00asm\x0d\x00\x01\x00"), `a component, not a core module: .* build for preview 1 of WASI`},
		{"no module", write("program", "\x7fELF\x02\x01\x01"), `not a WebAssembly module: it is a program or library for Linux: build it with GOOS=wasip1`},
		{"text", write("text", "(module)"), `in the text format: assemble it with wat2wasm`},
		{"empty", write("empty", ""), `the file is empty`},
		{"object", objectFile(t, dir), `an object file, not a module: link it`},
		{"js", assemble(t, "js", `(module (import "gojs" "runtime.wasmExit" (func (param i32))) (func (export "run") (param i32 i32)) (memory (export "mem") 1))`),
			`import "runtime.wasmExit" of "gojs": .* built for browsers, with GOOS=js: build it with GOOS=wasip1`},
		{"preview 2", assemble(t, "p2", `(module (import "wasi:cli/environment@0.2.0" "get-arguments" (func (param i32))))`), `another version of WASI: build it for preview 1`},
		{"undefined", assemble(t, "undefined", `(module (import "env" "malloc" (func (param i32) (result i32))))`), `declared and not defined: define them`},
		{"files", assemble(t, "files", `(module (import "wasi_snapshot_preview1" "path_open" (func)))`), `plugins have no files, sockets or threads: leave out`},
		{"no exports", assemble(t, "none", `(module (memory (export "memory") 1))`), `does not export function "sluice_abi_version": in Go, import .*/sdk and call sdk.Register`},
		{"half the exports", assemble(t, "half", `(module (memory (export "memory") 1) (func (export "sluice_abi_version") (result i32) (i32.const 0x10002)))`),
			`does not export function "sluice_alloc": export all that sdk/ABI.md requires`},
		{"threads", feature("threads", "--enable-threads", `(module (memory 1 1 shared))`), `threads .* -mno-atomics`},
		{"tail call", feature("tail", "--enable-tail-call", `(module (func $f (return_call $f)))`), `tail calls .* build for WebAssembly 2.0 .* -mno-tail-call`},
		{"exceptions", feature("exceptions", "--enable-exceptions", `(module (tag $e) (func (throw $e)))`), `exception handling .* -mno-exception-handling`},
		{"extended constants", feature("const", "--enable-extended-const", `(module (global i32 (i32.add (i32.const 1) (i32.const 2))))`), `extended constant expression .* -mno-extended-const`},
		{"two memories", feature("memories", "--enable-multi-memory", `(module (memory 1) (memory 1))`), `a second memory is not supported: .* -mno-multimemory`},
		{"memory64", feature("memory64", "--enable-memory64", `(module (memory i64 1))`), `a 64-bit memory is not supported: build for wasm32`},
		{"relaxed SIMD", feature("simd", "--enable-relaxed-simd", `(module (func (result v128) (i8x16.relaxed_swizzle (v128.const i64x2 0 0) (v128.const i64x2 0 0))))`),
			`relaxed SIMD .* -mno-relaxed-simd`},
	} {
		out, _, err := check(c.file)
		if err == nil || out != "" || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%s: got %v, want %q; printed %q", c.name, err, c.want, out)
		}
	}
}

// goCommand builds a plugin in Go without -buildmode=c-shared.
func goCommand(t *testing.T, dir string) string {
	out := filepath.Join(dir, "command.wasm")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "github.com/sluice-proxy/sluice/examples/plugin-hello")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, msg)
	}
	return out
}

// objectFile compiles a plugin in C without linking it.
func objectFile(t *testing.T, dir string) string {
	out := filepath.Join(dir, "faulty.o")
	cmd := testenv.Clang(t, "testdata/plugins/faulty/faulty.c", out)
	cmd.Args = append(cmd.Args, "-c", "-Wno-unused-command-line-argument")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("clang: %v\n%s", err, msg)
	}
	return out
}
