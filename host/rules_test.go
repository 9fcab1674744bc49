package host_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc      = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	codeSpan      = regexp.MustCompile("`([^`]+)`")
	ruleRow       = regexp.MustCompile(`^\| (\d+) \| .+ \| (.+) \|\n$`)
	ruleReference = regexp.MustCompile(`(?i)\brules? \d+(?:(?:, | and |, and | to |–)\d+)*`)
	number        = regexp.MustCompile(`\d+`)
)

// TestEveryRuleNamesTestsThatExist checks that each row of RULES.md has a unique number and names existing tests or test
// scripts, and that each reference such as "rules 1, 2 and 4" in the repository's texts names existing rules.
func TestEveryRuleNamesTestsThatExist(t *testing.T) {
	tests, references := map[string]bool{}, map[string][]string{} // reference → files
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".txtar":
			tests[strings.TrimSuffix(filepath.Base(path), ".txtar")] = true
		case ".go", ".md", ".yaml":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
				tests[m[1]] = true
			}
		}
		for _, m := range ruleReference.FindAllString(string(text), -1) {
			references[m] = append(references[m], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	table, err := os.ReadFile("RULES.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]bool{}
	for row := range strings.Lines(string(table)) {
		cells := ruleRow.FindStringSubmatch(row)
		if cells == nil {
			if strings.HasPrefix(row, "|") && row != "|---|---|---|\n" && row != "| # | rule | tests |\n" {
				t.Errorf("not a row of number, rule and tests: %s", row)
			}
			continue
		}
		if rules[cells[1]] {
			t.Errorf("rule %s: duplicate number", cells[1])
		}
		rules[cells[1]] = true
		named := codeSpan.FindAllStringSubmatch(cells[2], -1)
		if len(named) == 0 {
			t.Errorf("rule %s: names no test", cells[1])
		}
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("rule %s: no test %s", cells[1], m[1])
			}
		}
	}
	if len(rules) < 30 || len(references) < 3 {
		t.Fatalf("%d rules, %d references: the files were not read", len(rules), len(references))
	}
	for reference, files := range references {
		for _, n := range number.FindAllString(reference, -1) {
			if !rules[n] {
				t.Errorf("%s: %q: no rule %s in RULES.md", strings.Join(files, ", "), reference, n)
			}
		}
	}
}
