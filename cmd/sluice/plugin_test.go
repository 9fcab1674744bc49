package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// assemble compiles a module from the text format.
func assemble(t *testing.T, name, text string) string {
	t.Helper()
	testenv.RequireProgram(t, "wat2wasm", "wabt")
	out := filepath.Join(t.TempDir(), name+".wasm")
	cmd := exec.Command("wat2wasm", "-", "-o", out)
	cmd.Stdin = strings.NewReader(text)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v\n%s", err, msg)
	}
	module, err := os.ReadFile(out)
	if err == nil {
		err = os.WriteFile(out, hosts.Describe(text, module), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func check(args ...string) (stdout, stderr string, err error) {
	cmd := newPluginCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{"check"}, args...))
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

// keepWeights returns a module of host/plugin/wasm's tests that keeps the weight of each endpoint, with more code inserted.
func keepWeights(t *testing.T, evil string) string {
	t.Helper()
	base, err := os.ReadFile("../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(base), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"+evil, 1)
}

func TestPluginCheckPrintsCosts(t *testing.T) {
	needy := keepWeights(t, `(func (export "sluice_needs") (param i32) (result i32) (i32.const 12))`)
	out, stderr, err := check(assemble(t, "good", needy), "--answers")
	if err != nil || stderr != "" {
		t.Fatalf("%v %s", err, stderr)
	}
	for _, want := range []string{
		`ABI version +2\.1\n`, `needs +Nodes and CPU of zones, and the index of this node; names of Pods\n`, `imports +1 of sluice\n`, `size +\d+ bytes, metered \d+\n`,
		`compile +\d+\.\d\d ms and \d+\.\d\d ms for metering; from the cache \d+\.\d\d ms\n`, `instantiate +\d+\.\d\d ms, fuel \d+\n`,
		`memory +512 KiB declared, 5\d\d KiB after start, \d+ KiB after calls\n`, `host memory +\d+ KiB`, `deterministic +yes`, `\n +1 +\d+ `, `\n +10 +\d+ `, `\n +100 +\d+ `, `\n +1000 +\d+ `,
		`\n3 of 8 terminating +- +1 1 1 1 1 1 1 1`, `\n4 of 9 held +- +0 1 0 1 0 1 0 1 1`, `\noutcomes, 20 s later +- +1 `,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// config check reports the input that no node gives, with the plugin that asks for it.
func TestConfigCheckNamesTheInputThatIsNotGiven(t *testing.T) {
	module := assemble(t, "asks", keepWeights(t, `(func (export "sluice_needs") (param i32) (result i32) (i32.const 0x40000004))`))
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	text := "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\npluginCacheDir: " + t.TempDir() + "\nplugins: [{name: asks, file: " + module +
		"}]\npolicies: [{name: p, plugins: [{name: asks}]}]\ndefaultPolicy: p\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newConfigCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"check", file})
	err := cmd.Execute()
	if want := "plugin asks: module refused: sluice_needs asks for unknown inputs: bits 0x40000000"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestPluginCheckNamesTheModesThatRefuseAPlugin(t *testing.T) {
	caps := func(outcomes bool) func() plan.Caps { return func() plan.Caps { return plan.Caps{Outcomes: outcomes} } }
	modes := dataplane.Modes{{Name: "counts", Caps: caps(true)}, {Name: "other", Caps: caps(false)}}
	want := []string{"mode other: outcomes of connections: mode other does not count the outcomes of connections"}
	if got := refusedBy(modes, abi.NeedOutcomes|abi.NeedNodes, nil); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := refusedBy(modes, abi.NeedNodes, []string{"label:a"}); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestNeedsAreNamedWithTheirKeys(t *testing.T) {
	got := needsText(abi.NeedConnections, []string{"label:a", "service-annotation:example.com/b", "label:c", "request:cpu"})
	if want := "numbers of established connections; labels of Pods: a, c; CPU requests of Pods; annotations of Services: example.com/b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPluginCheckRefusesInvalidModules(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.wasm")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		want  string
		usage bool
	}{
		{[]string{filepath.Join(dir, "none.wasm")}, "none.wasm: no such file or directory", false},
		{[]string{dir}, "is a directory", false},
		{[]string{"/dev/zero"}, "not a regular file", false},
		{[]string{text}, "not a WebAssembly module", false},
		{[]string{text, "--settings", "{"}, "--settings is not JSON", true},
		{[]string{assemble(t, "loop", keepWeights(t, `(func (export "_initialize") (loop (br 0)))`))}, "_initialize: ", false}, // out of fuel, or of time
		{[]string{assemble(t, "import", `(module (import "env" "exec" (func)))`)}, `import "exec" of "env"`, false},
		{[]string{assemble(t, "nothing", `(module)`)}, `not a sluice plugin: it does not export memory "memory"`, false},
		{[]string{assemble(t, "unknown", keepWeights(t, `(func (export "sluice_needs") (param i32) (result i32) (i32.const 0x40000000))`))}, "unknown inputs: bits 0x40000000", false},
		{[]string{assemble(t, "keys", keepWeights(t, `(data (i32.const 16) "color:red") (func (export "sluice_keys") (param i32 i32 i32) (result i32)
			(memory.copy (local.get 1) (i32.const 16) (i32.const 9)) (i32.const 9))`))}, `sluice_keys: key 0: "color:red" is of an unknown kind`, false},
		{[]string{assemble(t, "older", strings.Replace(keepWeights(t, ""), "0x20001", "0x20000", 1))},
			"it has ABI version 2.0, and its manifest lists what a later version has added: endpointState (2.1), nodeLabels (2.1), namespaceLabels (2.1)", false},
		{[]string{assemble(t, "settings", keepWeights(t, "")), "--settings", `{"a":1}`}, "settings: the plugin accepts none", false},
	} {
		out, _, err := check(c.args...)
		var usage usageError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &usage) != c.usage {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: more than a paragraph: %q", c.args, err)
		}
		if out != "" {
			t.Errorf("%v printed %q", c.args, out)
		}
	}
}
