package meter_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

const outlined = `(module
	(import "host" "log" (func $log (param i32)))
	(memory (export "memory") 1)
	(table (export "table") 4 funcref)
	(global (export "g") (mut i32) (i32.const 7))
	(func $f (export "f") (param i32) (result i32) (local i64) (call $log (i32.const 1)) (i32.add (local.get 0) (i32.const 1)))
	(func $g (param i32) (result i32) (local.get 0))
	(elem (i32.const 1) $f $g)
	(data (i32.const 8) "abc") DATA)`

func TestOutlineHasEverythingButCode(t *testing.T) {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	for name, c := range map[string]struct {
		data  string
		image bool
	}{
		"data at a constant offset":         {``, true},
		"data that an instruction may name": {`(data "passive") (func (data.drop 1))`, false},
	} {
		metered, _ := rewrite(t, wat(t, strings.Replace(outlined, "DATA", c.data, 1)))
		o, err := meter.NewOutline(metered)
		if err != nil || (o.Memory != nil) != c.image || c.image && string(o.Memory) != strings.Repeat("\x00", 8)+"abc" {
			t.Errorf("%s: image %q, %v", name, o.Memory, err)
			continue
		}
		whole, err := rt.CompileModule(ctx, metered)
		if err != nil {
			t.Fatal(err)
		}
		outline, err := rt.CompileModule(ctx, o.Module)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for name, f := range whole.ExportedFunctions() {
			if g := outline.ExportedFunctions()[name]; g == nil || g.Index() != f.Index() || g.Name() != f.Name() {
				t.Errorf("export %s is another function", name)
			}
		}
		if len(outline.ExportedMemories()) != 1 || len(outline.ImportedFunctions()) != 1 {
			t.Errorf("%s: exports and imports are missing", name)
		}
	}
}

func TestOutlineOfDamagedModule(t *testing.T) {
	metered, _ := rewrite(t, wat(t, strings.Replace(outlined, "DATA", "", 1)))
	for n := range metered {
		if _, err := meter.NewOutline(metered[:n]); err != nil {
			continue
		}
		// A module that ends with a section is one with fewer sections.
		if _, _, err := meter.Rewrite(metered[:n], meter.DefaultLimits()); err != nil && strings.Contains(err.Error(), "unexpected end") {
			t.Errorf("the first %d bytes have an outline", n)
		}
	}
}

// TestVersionCoversTheWholePackage: code that was compiled from what an earlier version has rewritten must not be used.
func TestVersionCoversTheWholePackage(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	embedded := strings.Fields(strings.Join(regexp.MustCompile(`(?m)^//go:embed (.*)$`).FindAllString(string(text), -1), " "))
	listed := map[string]bool{}
	for _, name := range embedded {
		listed[name] = true
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") == listed[name] {
			t.Errorf("%s: embedded in version.go: %v", name, listed[name])
		}
	}
	if v := meter.Version(); len(v) != 64 || v != meter.Version() {
		t.Errorf("version %q", v)
	}
}
