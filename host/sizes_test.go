package host_test

import (
	"os"
	"strings"
	"testing"
)

// sizes are how long, in bytes, a document may be that is read as a whole.
var sizes = map[string]int{
	"RATIONALE.md": 35_000,
	"SECURITY.md":  15_000,
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

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	must(t, err)
	return string(text)
}
