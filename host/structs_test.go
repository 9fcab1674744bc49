package host_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFields  = 20
	maxMethods = 30
)

// largeStructs are the structs of the product that have more, with the reason. The list only gets shorter.
var largeStructs = map[string]string{
	// Values: nothing but what is reported, configured or decoded.
	"host/core/planner.Explanation":   "a report",
	"host/core/planner.Result":        "a report",
	"host/node/agent/api.Explanation": "the state API's JSON",
	"host/node/config.Config":         "the configuration file",
	"host/plugin/wasm/meter.Limits":   "one bound of a module each",
	"host/plugin/wasm/meter.module":   "the sections of a module",
	"host/backend/nftables.schema":    "the sets and maps of the table",
	// One method for each thing of a kind.
	"host/backend/conformance.session":  "a test of the kit each",
	"host/backend/nftables.ruleBuilder": "a rule each",
	"host/plugin/wasm/meter.scanner":    "an encoding of the module format each",
	"host/backend/fake.Kernel":          "an operation of the kernel each",
	"host/whatif/simulation.timeline":   "a verb of scenarios each",
	// One owner of one state that one goroutine changes; to be divided by job.
	"host/core/planner.round":       "what is known of a Service while it is planned, released as a whole",
	"host/engine.Engine":            "the loop that owns planner and backend",
	"host/node/agent.Agent":         "connects all parts of a node",
	"host/source/kube.Source":       "a reflector for each kind of objects",
	"host/backend/ipvs.Backend":     "the state of the kernel's virtual servers and its companion in nftables",
	"host/backend/nftables.Backend": "the state of the kernel's table, with what Apply, Read and Watch share",
	"host/backend/nftables.table":   "the elements of the kernel's table, which each transaction changes together",
	"host/plugin/wasm.Plugin":       "a loaded plugin with its processes and what it is blamed for",
	"host/plugin/wasm.sandbox":      "an instance of a module, discarded as a whole",
}

// structSize is the size of a struct, as text counts it: an embedded field is one.
type structSize struct{ fields, methods int }

// structsOf counts the fields and methods of the structs in a folder and those below it, by folder and name.
func structsOf(t *testing.T, root string) map[string]*structSize {
	t.Helper()
	out := map[string]*structSize{}
	of := func(path, name string) *structSize {
		key := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../") + "." + name
		if out[key] == nil {
			out[key] = &structSize{}
		}
		return out[key]
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path == "../host/lab"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv != nil {
					of(path, receiver(decl.Recv.List[0].Type)).methods++
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						if fields, ok := s.Type.(*ast.StructType); ok {
							of(path, s.Name.Name).fields += fields.Fields.NumFields()
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// TestStructsAreSmall checks that a struct of the product can be held in the head, or that it is known why not.
func TestStructsAreSmall(t *testing.T) {
	seen := map[string]bool{}
	for _, root := range []string{"../host", "../cmd", "../plugins", "../deploy"} {
		for name, s := range structsOf(t, root) {
			_, listed := largeStructs[name]
			seen[name] = listed
			switch large := s.fields > maxFields || s.methods > maxMethods; {
			case large && !listed:
				t.Errorf("%s has %d fields and %d methods: divide it by job, or list it with the reason", name, s.fields, s.methods)
			case listed && !large:
				t.Errorf("%s has %d fields and %d methods: take it off the list", name, s.fields, s.methods)
			}
		}
	}
	for name := range largeStructs {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
