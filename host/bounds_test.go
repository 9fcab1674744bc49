package host_test

import (
	"go/ast"
	"go/constant"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

var (
	// bound matches a number with its unit and, in parentheses, what it is in the code or the configuration.
	bound = regexp.MustCompile("(\\d[\\d,./]*)(?: ([\\pL%]+))?[^\\d|`(.;]*\\(`([\\w.]+)`\\)")
	// boundName matches any such name in parentheses.
	boundName = regexp.MustCompile("\\(`(\\w+\\.\\w+)`\\)")
	units     = map[string]string{
		"µs": "1000", "ms": "1000000", "s": "1000000000", "min": "60000000000",
		"KiB": "1024", "MiB": "1048576", "GiB": "1073741824", "k": "1000", "M": "1000000", "G": "1000000000",
	}
)

// TestBoundsInDocumentsAreTheCodes compares the bounds in SECURITY.md and other documents that name a constant, a variable or a
// field of the configuration with its value: "300 ms (`engine.firstAnswerWait`)", "256 MiB (`pluginLimits.memoryMiB`)". A
// fraction 1/20 is a constant 20. In SECURITY.md and the sections "Bounds" of READMEs, each name in parentheses must be a bound.
func TestBoundsInDocumentsAreTheCodes(t *testing.T) {
	tr, err := readTree()
	if err != nil {
		t.Fatal(err)
	}
	defaults := readDefaults(t)
	promised := 0
	for _, file := range markdownFiles(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		promises, rest := string(text), ""
		if file != "../SECURITY.md" {
			promises, rest = cutSection(promises, "\n## Bounds\n")
		}
		for _, strict := range []bool{true, false} {
			flat := strings.Join(strings.Fields(map[bool]string{true: promises, false: rest}[strict]), " ")
			matches := bound.FindAllStringSubmatch(flat, -1)
			if n := len(boundName.FindAllString(flat, -1)); strict && n != len(matches) {
				t.Errorf("%s: %d names of bounds, %d of them behind a number", file, n, len(matches))
			}
			if strict {
				promised += len(matches)
			}
			for _, m := range matches {
				number, unit, name := strings.ReplaceAll(strings.TrimRight(m[1], ",."), ",", ""), m[2], m[3]
				got, isField := defaults[name]
				if isField {
					unit = "" // the field's name has it
				} else if pkg, rest, _ := strings.Cut(name, "."); tr.values[name] != nil || strict {
					got = tr.value(name, tr.values[name])
				} else if tr.declared[pkg] == nil || tr.words[rest] || fileName.MatchString(name) {
					continue // something else in parentheses: a file, a function, a name of another program
				}
				want := quoted(number, unit)
				if got == nil || got.Kind() == constant.Unknown || want.Kind() == constant.Unknown {
					t.Errorf("%s: %s: neither a number in the code nor in the default configuration: %s", file, name, m[0])
				} else if !constant.Compare(got, token.EQL, want) {
					t.Errorf("%s: %s is %s: %s", file, name, got, m[0])
				}
			}
		}
	}
	if promised < 90 {
		t.Errorf("%d bounds of promises compared", promised)
	}
}

// cutSection returns the section of a document with a heading, and the rest of it.
func cutSection(text, heading string) (section, rest string) {
	before, after, found := strings.Cut(text, heading)
	if !found {
		return "", text
	}
	section, after, _ = strings.Cut(after, "\n## ")
	return section, before + "\n" + after
}

// quoted returns the number that a text has.
func quoted(number, unit string) constant.Value {
	number = strings.TrimPrefix(number, "1/")
	v := constant.MakeFromLiteral(number, token.INT, 0)
	if strings.Contains(number, ".") {
		v = constant.MakeFromLiteral(number, token.FLOAT, 0)
	}
	if factor := units[unit]; factor != "" && v.Kind() != constant.Unknown {
		v = constant.BinaryOp(v, token.MUL, constant.MakeFromLiteral(factor, token.INT, 0))
	}
	return v
}

// value evaluates the declaration of a constant or variable; its value is unknown if it is not made of numbers and constants of
// the packages here and of time.
func (tr *tree) value(name string, e ast.Expr) constant.Value {
	pkg, _, _ := strings.Cut(name, ".")
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return tr.value(name, e.X)
	case *ast.Ident:
		return tr.value(name, tr.values[pkg+"."+e.Name])
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			unit := map[string]time.Duration{"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
			if x.Name == "time" {
				return constant.MakeInt64(int64(unit[e.Sel.Name]))
			}
			return tr.value(x.Name, tr.values[x.Name+"."+e.Sel.Name])
		}
	case *ast.CallExpr: // a conversion
		if len(e.Args) == 1 {
			return tr.value(name, e.Args[0])
		}
	case *ast.BinaryExpr:
		x, y := tr.value(name, e.X), tr.value(name, e.Y)
		if x.Kind() == constant.Unknown || y.Kind() == constant.Unknown {
			return constant.MakeUnknown()
		}
		if e.Op == token.SHL {
			bits, _ := constant.Uint64Val(y)
			return constant.Shift(x, token.SHL, uint(bits))
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}

// readDefaults returns the numbers of the default configuration by their paths, and those of plugins and policies.
func readDefaults(t *testing.T) map[string]constant.Value {
	t.Helper()
	text, err := os.ReadFile("node/config/defaults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	out := map[string]constant.Value{}
	var walk func(prefix string, fields map[string]any)
	walk = func(prefix string, fields map[string]any) {
		for name, v := range fields {
			switch v := v.(type) {
			case map[string]any:
				walk(prefix+name+".", v)
			case float64:
				out[prefix+name] = constant.ToInt(constant.MakeFloat64(v))
			case string:
				if d, err := time.ParseDuration(v); err == nil && d > 0 { // 0: the kernel's
					out[prefix+name] = constant.MakeInt64(int64(d / time.Second)) // documents have seconds
				}
			}
		}
	}
	walk("", document)
	for list, item := range map[string]reflect.Type{"plugins.": reflect.TypeFor[config.Plugin](), "policies.": reflect.TypeFor[config.Policy]()} {
		for _, f := range strictyaml.Fields(item) {
			if v := constant.MakeFromLiteral(f.Tag.Get("default"), token.INT, 0); v.Kind() != constant.Unknown {
				out[list+f.Name] = v
			}
		}
	}
	return out
}
