package host_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sleepReason matches the comment behind a sleep of a test. Pace is that of a load or of changes that a test makes; nothing
// happens in a period in which something wrong would; time passes where the clock itself is the condition.
var sleepReason = regexp.MustCompile(`^// (pace of|nothing happens|time passes)\b`)

// TestTestsDoNotSleep checks that tests watch for a condition (testenv.Eventually) or run in a bubble of testing/synctest, whose
// sleeps take no time: any other sleep has one of the reasons behind it.
func TestTestsDoNotSleep(t *testing.T) {
	checked := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
			return nil
		}
		reasons := map[int]string{} // by line
		for _, group := range file.Comments {
			for _, c := range group.List {
				reasons[files.Position(c.Pos()).Line] = c.Text
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if f, ok := n.(*ast.SelectorExpr); ok && f.Sel.Name == "Sleep" {
				if x, ok := f.X.(*ast.Ident); ok && x.Name == "time" {
					checked++
					if at := files.Position(f.Pos()); !sleepReason.MatchString(reasons[at.Line]) {
						t.Errorf("%s sleeps: watch for a condition, see testenv.Eventually and CONTRIBUTING.md", at)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 10 {
		t.Errorf("%d sleeps: the files were not read", checked)
	}
}
