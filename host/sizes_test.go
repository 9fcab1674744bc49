package host_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sizes are how long, in bytes, a document may be that is read as a whole.
var sizes = map[string]int{
	"RATIONALE.md": 35_000,
	"SECURITY.md":  15_500,
	"CHANGELOG.md": 8_000,
}

// decisionWords is how many words a decision in RATIONALE.md may have, without its heading.
const decisionWords = 150

// TestDocumentsAreShort checks the size of documents that grow with each change, and of each decision in RATIONALE.md.
func TestDocumentsAreShort(t *testing.T) {
	for name, limit := range sizes {
		if text := readDocument(t, name); len(text) > limit {
			t.Errorf("%s has %d bytes, more than %d", name, len(text), limit)
		}
	}
	decisions := strings.Split(readDocument(t, "RATIONALE.md"), "\n### ")[1:]
	if len(decisions) < 50 {
		t.Fatalf("%d decisions: RATIONALE.md was not read", len(decisions))
	}
	for _, d := range decisions {
		title, body, _ := strings.Cut(d, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		if n := len(strings.Fields(body)); n > decisionWords {
			t.Errorf("RATIONALE.md: %s: %d words, more than %d", title, n, decisionWords)
		}
	}
}

// pronouns stand for a noun that is better repeated.
var pronouns = regexp.MustCompile(`.{0,40}\b([Tt]hose (that|who|whose|which)|of which|[Oo]ne that)\b.{0,40}`)

// TestProseRepeatsTheNoun checks what CONTRIBUTING.md says of style, outside of examples.
func TestProseRepeatsTheNoun(t *testing.T) {
	for _, file := range markdownFiles(t) {
		if filepath.Base(file) == "CONTRIBUTING.md" {
			continue // which names them
		}
		text, err := os.ReadFile(file)
		must(t, err)
		flat := strings.Join(strings.Fields(fence.ReplaceAllString(string(text), "")), " ")
		for _, found := range pronouns.FindAllString(flat, -1) {
			t.Errorf("%s: repeat the noun: …%s…", file, found)
		}
	}
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	must(t, err)
	return string(text)
}
