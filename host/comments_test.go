package host_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	// notWrapped matches comments that cannot be wrapped: directives, outputs of examples, and indented tables and code.
	notWrapped    = regexp.MustCompile(`^//(\t|go:|nolint| \+| Output: )`)
	generatedCode = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// TestCommentsHaveAtMost130Columns checks comments that have lines of their own; a tab counts 4 columns.
func TestCommentsHaveAtMost130Columns(t *testing.T) {
	tr, err := readTree()
	must(t, err)
	comments := 0
	for _, file := range tr.files {
		if filepath.Ext(file) != ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", file))
		must(t, err)
		if generatedCode.Match(text) {
			continue
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			comment := strings.TrimSpace(line)
			if !strings.HasPrefix(comment, "//") || notWrapped.MatchString(comment) {
				continue
			}
			comments++
			tabs := len(line) - len(strings.TrimLeft(line, "\t"))
			if width := 4*tabs + utf8.RuneCountInString(comment); width > 130 {
				t.Errorf("%s:%d: a comment of %d columns: %.60s…", file, n, width, comment)
			}
		}
	}
	if comments < 10_000 {
		t.Errorf("%d lines of comments: the tree was not read", comments)
	}
}
