package host_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityNamesTestsThatExist checks the tests that SECURITY.md names; "TestHostCalls…" stands for all that begin so.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	document, err := os.ReadFile("../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Builder{}
	all.WriteString("\n")
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, f := range testFunction.FindAllString(string(text), -1) {
			all.WriteString(f + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range testReference.FindAllString(string(document), -1) {
		begin, isPrefix := strings.CutSuffix(name, "…")
		if !isPrefix {
			begin += "("
		}
		if !strings.Contains(all.String(), "\nfunc "+begin) {
			t.Errorf("SECURITY.md: there is no test %s", name)
		}
	}
}

var (
	testFunction  = regexp.MustCompile(`(?m)^func (Test|Fuzz|Benchmark)\w+\(`)
	testReference = regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*…?`)
)
