package strictyaml

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLinesOfPaths(t *testing.T) {
	docs := SplitYAML(`# comment
---
kind: x
list:
- name: a
  labels: {a.b/c: "1",
    tier: web}
- &anchor
  name: b
also: *anchor
"quoted": {deep: [[1,
  2]]}
`)
	if len(docs) != 1 {
		t.Fatal(docs)
	}
	line := docs[0].Lines()
	for path, want := range map[string]int{
		"kind": 3, "list": 4, "list[0]": 5, "list[0].name": 5, "list[0].labels": 6, "list[0].labels.a.b/c": 6, "list[0].labels[a.b/c]": 6, "list[0].labels[tier]": 7,
		"list[1].name": 9, "list[1].file": 8, "list[2]": 4, "list[x]": 4, "also.name": 9, "quoted.deep[0][1]": 12, "none": 0, "none.kind": 0, "": 0, "kind.more": 3, "kin": 0,
	} {
		if got := line(path); got != want {
			t.Errorf("%q: line %d, want %d", path, got, want)
		}
	}
	if got := (Document{Text: "a: [", Line: 1}).Lines()("a"); got != 0 {
		t.Errorf("not well-formed: line %d", got)
	}
}

// TestLinesOfRandomTrees writes trees with one value on each line, and looks for each.
func TestLinesOfRandomTrees(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var text strings.Builder
		n := 1
		want := map[string]int{}
		var write func(path, indent string, depth int)
		write = func(path, indent string, depth int) {
			for i := range 1 + random.IntN(3) {
				name := []string{"a", "b.c", "a[0]"}[i]
				at := JoinPath(path, name)
				n++
				want[at] = n
				switch {
				case depth == 0:
					fmt.Fprintf(&text, "%s%q: 1\n", indent, name)
				case random.IntN(2) == 0:
					fmt.Fprintf(&text, "%s%q:\n", indent, name)
					write(at, indent+"  ", depth-1)
				default:
					fmt.Fprintf(&text, "%s%q:\n", indent, name)
					for j := range random.IntN(3) {
						n++
						want[fmt.Sprintf("%s[%d]", at, j)] = n
						fmt.Fprintf(&text, "%s- %d\n", indent, j)
					}
				}
			}
		}
		text.WriteString("---\n")
		write("", "", 3)
		docs := SplitYAML(text.String())
		line := docs[0].Lines()
		for path, w := range want {
			if strings.Contains(path, "a[0]") || strings.HasSuffix(path, "a") && want[path+"[0]"] != 0 {
				continue // "a[0]" is an element of a, or a key of its own
			}
			if got := line(path); got != w {
				t.Fatalf("seed %d: %s: line %d, want %d\n%s", seed, path, got, w, text.String())
			}
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add("a: {b: [1]}", "a.b[0]")
	f.Add("a: &x [*x]", "a[0][0][0]")
	f.Add(`{"a": 1}`, "a[")
	f.Fuzz(func(t *testing.T, text, path string) {
		for _, d := range SplitYAML(text) {
			if got := d.Lines()(path); got < 0 || got > d.Line+strings.Count(text, "\n") {
				out, _ := json.Marshal(text)
				t.Errorf("%s: %q: line %d", out, path, got)
			}
		}
	})
}
