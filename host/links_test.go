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
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	repoPath     = regexp.MustCompile("`((?:cmd|host|plugins|sdk|deploy|examples)/[\\w./-]+)`")
	anchor       = regexp.MustCompile(`[^\w\- ]`)
)

// TestDocumentationLinksResolve checks that the relative links of all Markdown files, with their anchors, and the
// repository paths in code spans exist.
func TestDocumentationLinksResolve(t *testing.T) {
	for _, file := range markdownFiles(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range markdownLink.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, fragment, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link %s: %v", file, m[1], err)
			} else if fragment != "" && !hasHeading(t, target, fragment) {
				t.Errorf("%s: link %s: no such heading", file, m[1])
			}
		}
		for _, m := range repoPath.FindAllStringSubmatch(string(text), -1) {
			path := strings.TrimSuffix(strings.TrimSuffix(m[1], "/..."), ".")
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s: `%s`: %v", file, m[1], err)
			}
		}
	}
}

func markdownFiles(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// hasHeading reports whether a Markdown file has a heading with the given anchor, in the form that GitHub derives.
func hasHeading(t *testing.T, file, want string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		title := strings.TrimSpace(strings.TrimLeft(line, "#"))
		if strings.HasPrefix(line, "#") && strings.ReplaceAll(anchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-") == want {
			return true
		}
	}
	return false
}
