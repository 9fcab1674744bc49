package host_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryRuleNamesTestsThatExist keeps RULES.md true: each row names tests or scripts, and all of them are there.
func TestEveryRuleNamesTestsThatExist(t *testing.T) {
	have := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".txtar"):
			have[strings.TrimSuffix(filepath.Base(path), ".txtar")] = true
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range fn.FindAllStringSubmatch(string(text), -1) {
				have[m[1]] = true
			}
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
	named, rows := regexp.MustCompile("`([^`]+)`"), 0
	for row := range strings.Lines(string(table)) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 || strings.HasPrefix(row, "|---") || strings.Contains(row, "| shown by |") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(cells[len(cells)-2], -1)
		if len(tests) == 0 {
			t.Errorf("no test is named: %s", row)
		}
		for _, m := range tests {
			if !have[m[1]] {
				t.Errorf("%s is not there: %s", m[1], row)
			}
		}
	}
	if rows < 30 {
		t.Fatalf("%d rows: the table was not read", rows)
	}
}
