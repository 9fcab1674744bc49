package abiconformance

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// TestMain is also the processes in which plugins run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process[1] {
		os.Exit(wasm.ProcessMain(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

var process = []string{"conformance.test", "plugin"}

// onEngines runs a test with plugins in this process, and in processes of their own, with the code that cache has.
func onEngines(t *testing.T, cache string, test func(t *testing.T, h *wasm.Host)) {
	t.Helper()
	t.Run("in this process", func(t *testing.T) { test(t, openHost(t, wasm.Options{CacheDir: cache})) })
	t.Run("in processes", func(t *testing.T) {
		if testenv.Race {
			t.Skip("a process without rights needs a build without cgo")
		}
		test(t, openHost(t, wasm.Options{CacheDir: cache, Process: process}))
	})
}

func newHost(t *testing.T) *wasm.Host {
	t.Helper()
	return openHost(t, wasm.Options{CacheDir: testenv.PluginCache(t)})
}

func openHost(t *testing.T, o wasm.Options) *wasm.Host {
	t.Helper()
	h, err := wasm.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(t.Context()) })
	return h
}

// prove proves a module.
func prove(t *testing.T, h *wasm.Host, module []byte, settings string) *tck.Report {
	t.Helper()
	r, err := Run(t.Context(), h, "test", module, settings)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Passed + r.Failed + r.Warned + r.Skipped; n != len(tck.Requirements()) || n != len(r.Results) {
		t.Errorf("%d verdicts", n)
	}
	return r
}

// failures returns the requirements that a module fails, with what was found.
func failures(t *testing.T, h *wasm.Host, module []byte, settings string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, x := range prove(t, h, module, settings).Results {
		if x.Verdict == tck.Fail {
			out[x.ID] = x.Detail
		}
	}
	return out
}

// The bundled plugins are proved as nodes run them, in processes; the examples show that this process finds the same.
func TestBundledPluginsAndExamplesConform(t *testing.T) {
	onEngines(t, testenv.PluginCache(t), func(t *testing.T, h *wasm.Host) {
		patterns := []string{"examples/plugin-*/main.go", "plugins/*/main.go"}
		if strings.HasSuffix(t.Name(), "in_this_process") {
			patterns = patterns[:1]
		}
		expectConforms(t, h, patterns...)
	})
}

// expectConforms proves the plugins whose main files match patterns.
func expectConforms(t *testing.T, h *wasm.Host, patterns ...string) {
	t.Helper()
	settings := map[string]string{"canary": `{"groups": [{"value": "canary", "percent": 5}]}`} // others: {}
	const noSettings = "plugin-zone-first"                                                     // ignores any: a warning
	var packages []string
	for _, pattern := range patterns {
		files, err := filepath.Glob("../../../../" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			p, err := filepath.Rel("../../../..", filepath.Dir(f))
			if err != nil {
				t.Fatal(err)
			}
			packages = append(packages, filepath.ToSlash(p))
		}
	}
	dir := testenv.Plugins(t, packages...)
	for _, p := range packages {
		name := filepath.Base(p)
		module, err := os.ReadFile(filepath.Join(dir, name+".wasm"))
		if err != nil {
			t.Fatal(err)
		}
		for id, detail := range failures(t, h, module, cmp.Or(settings[name], "{}")) {
			if name != noSettings || id != tck.UnknownField {
				t.Errorf("%s: %s: %s", name, id, detail)
			}
		}
	}
}

// TestSDKsConform checks the example policies of all SDKs.
func TestSDKsConform(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	h := newHost(t)
	policies, err := filepath.Glob("../../../../sdk/examples/*/plugin.c")
	if err != nil || len(policies) < 2 {
		t.Fatal(policies, err)
	}
	for _, p := range policies {
		policy := filepath.Base(filepath.Dir(p))
		head, rows := "| "+policy+" |", make([]string, len(tck.Requirements()))
		for _, g := range testenv.SDKGuests(t, policy) {
			module, err := os.ReadFile(g.File)
			if err != nil {
				t.Fatal(err)
			}
			head += " " + g.Language + " |"
			for i, x := range prove(t, h, module, "{}").Results {
				if x.Verdict != tck.Pass {
					t.Errorf("%s, %s: %s: %s", policy, g.Language, x.ID, x.Detail)
				}
				rows[i] += " " + string(x.Verdict) + " |"
			}
		}
		var table strings.Builder
		for i, q := range tck.Requirements() {
			fmt.Fprintf(&table, "\n| %s %s, %s |%s", q.ID, q.Level, q.Text, rows[i])
		}
		t.Logf("\n%s%s", head, table.String())
	}
}

// Each guest breaks one requirement; others that follow from it are listed.
func TestBrokenGuestsFailTheRequirementThatTheyBreak(t *testing.T) {
	onEngines(t, t.TempDir(), brokenGuestsFailTheRequirementThatTheyBreak)
}

func brokenGuestsFailTheRequirementThatTheyBreak(t *testing.T, h *wasm.Host) {
	raw, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	base := strings.Replace(string(raw), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))\n  (global $calls (mut i32) (i32.const 0))", 1)
	const (
		share = "(i32.load offset=36 (local.get $from))"
		begin = "(global.set $cap (local.get $cap))"
		end   = "(i64.extend_i32_u (i32.load offset=4 (local.get $resp)))"
	)
	always := []string{tck.SmallBuffer, tck.WrongRequest} // base.wat checks neither
	for _, c := range []struct {
		name, old, new string
		want           string // IDs
		detail         string // of the first
	}{
		{"nothing", ";; no such comment", "", "", ""},
		{"a missing export", `(export "sluice_alloc")`, "", tck.Exports, `does not export function "sluice_alloc"`},
		{"an import", `(import "sluice" "log" (func $log (param i32 i32 i32)))`, `(import "env" "abort" (func $log (param i32 i32 i32)))`, tck.Imports, `"abort" of "env"`},
		{"another major version", "0x20001", "0x10002", tck.Loads, `ABI version 1\.2, this host needs 2\.1`},
		{"inputs later than its version", "0x20001", "0x20000", tck.Loads, `has ABI version 2\.0, .*: endpointState \(2\.1\), nodeLabels \(2\.1\)`},
		{"no manifest", "(module", ";; section: none\n(module", tck.Loads, `no custom section "sluice"`},
		{"an unknown role", "(module", ";; role: boss\n(module", tck.Loads, `role: "boss" is none of exclude, `},
		{"unaligned buffers", "(i32.const 7)) (i32.const -8)", "(i32.const 3)) (i32.const -4)", tck.Allocates + " G10 G22", "not an 8-byte aligned address"},
		{"buffers that are given twice", "(global.set $brk (i32.and", "(drop (i32.and", tck.Allocates + " G10 G13 G19 G21 G22", "within the buffer of"},
		{"the size of a record for the stride", "(i32.load offset=80 (local.get $req))", "(i32.const 72)", tck.ByStride, "with 8 bytes appended"},
		{"endpoints right after the header", "(i32.load offset=72 (local.get $req))", "(i32.const 200)", tck.ByStride + " " + tck.ByOffset, "value 1000000 and"},
		{"an id as a number", share, "(i32.add (i32.const 1) (i32.and (i32.load offset=28 (local.get $from)) (i32.const 15)))", tck.AnyIDs, "ids from"},
		{"equal conditions", share, "(i32.add (i32.const 1) (i32.eq (i32.load offset=20 (local.get $from)) (i32.const 147)))", tck.UnknownBits, "undefined bits"},
		{"a trap for a long state", begin, "(if (i32.gt_u (i32.load offset=112 (local.get $req)) (i32.const 100)) (then unreachable))", tck.AnyState, "a state of 1024 bytes"},
		{"a count of calls", share, "(i32.add (i32.const 1) (i32.and (global.get $calls) (i32.const 1)))", tck.Deterministic + " G22", "the plugin counts its calls"},
		{"growth", begin, "(drop (memory.grow (i32.const 1)))", tck.Memory, `\d+ KiB after 150 calls`},
		{"a byte beyond the response", begin, "(i32.store8 (i32.add (local.get $resp) (local.get $cap)) (i32.const 1))", tck.Bounds + " G10 G19 G22", "after the end of the response"},
		{"no share", share, "(i32.const 0)", tck.Nothing, "no eligible endpoint is left with capacity and a share"},
		{"a group without groups", "(i32.const 0xffff))", "(i32.const 0x7ffff))", tck.Range, "has group 7"},
		{"groups by another role", end, "(if (local.get $n) (then (i64.store offset=48 (local.get $resp) (i64.const 0x100000038)))) " + end, tck.Role + " G21", "the answer has 1 groups, the role is pick"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(base, c.old, c.new, 1)
			if text == base && c.want != "" {
				t.Fatalf("no %q in base.wat", c.old)
			}
			if c.name == "a count of calls" {
				text = strings.Replace(text, begin, "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))", 1)
			}
			if strings.HasPrefix(c.want, tck.Role) {
				text = ";; role: pick\n" + text
			}
			got := failures(t, h, testenv.WAT(t, text, "--no-check"), "")
			want := strings.Fields(c.want)
			for _, id := range want {
				if _, ok := got[id]; !ok {
					t.Errorf("%s does not fail", id)
				}
			}
			if len(want) > 0 && !regexp.MustCompile(c.detail).MatchString(got[want[0]]) {
				t.Errorf("%s: %q does not match %q", want[0], got[want[0]], c.detail)
			}
			for id, detail := range got {
				if !slices.Contains(want, id) && !slices.Contains(always, id) {
					t.Errorf("%s fails too: %s", id, detail)
				}
			}
		})
	}
}
