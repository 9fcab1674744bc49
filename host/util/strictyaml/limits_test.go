package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExcessiveAliasExpansionIsRejected(t *testing.T) {
	laughs := "a0: &a0 lol\n"
	for i := range 40 {
		laughs += fmt.Sprintf("a%d: &a%d [*a%d, *a%d, *a%d]\n", i+1, i+1, i, i, i)
	}
	for name, c := range map[string]struct {
		text string
		line int
		want string
	}{
		"one large string, many times": {"a: &a " + strings.Repeat("x", 1<<20) + "\nips: [" + strings.Repeat("*a, ", 1499) + "*a]\n", 11, "aliases expand the document to 1501 MiB, from 1029 KiB; the limit is 16 MiB"},
		"aliases of aliases":           {laughs, 21, "GiB, from 11"},
		"merged":                       {"a: &a {k: " + strings.Repeat("x", 1<<20) + "}\nb:\n" + strings.Repeat("- <<: *a\n", 20), 28, "aliases expand the document to 21 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Document{Text: c.text, Line: 10}.ToJSON()
			var s *SyntaxError
			if !errors.As(err, &s) || !strings.Contains(err.Error(), c.want) || s.Line != c.line {
				t.Errorf("error %v; want line %d, %s", err, c.line, c.want)
			}
		})
	}
}

func TestAliasesWithinLimitsAreAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"a few":           "a: &a {x: 1}\nb: [*a, *a]\n",
		"much of a small": "a: &a " + strings.Repeat("x", 1000) + "\nb: [" + strings.Repeat("*a, ", 500) + "*a]\n",
		"marks in text":   "a: 'x &a *b'\nb: \"if [ a && b ]; then *.x; *y; &z\"\n",
	} {
		if raw, _, err := (Document{Text: text, Line: 1}).ToJSON(); err != nil || len(raw) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := (Document{Text: "a: &a [*a]\n", Line: 1}).ToJSON(); err == nil {
		t.Error("an alias inside its own anchor is accepted")
	}
}

func TestNestingIsLimited(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	block := ""
	for i := range 101 {
		block += strings.Repeat(" ", i) + "a:\n"
	}
	var chain strings.Builder
	chain.WriteString("- &a0 [x]\n")
	for i := range 100 {
		fmt.Fprintf(&chain, "- &a%d [*a%d]\n", i+1, i)
	}
	for name, c := range map[string]struct {
		text string
		line int // 0: it is taken
	}{
		"100":       {nested(100), 0},
		"101":       {nested(101), 3},
		"9990":      {"\n" + nested(9990), 4},
		"blocks":    {block, 3 + 100},
		"by alias":  {chain.String(), 3 + 99},
		"in a text": {"a: '" + nested(200) + "'", 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Document{Text: c.text, Line: 3}.ToJSON()
			var s *SyntaxError
			switch {
			case c.line == 0 && err != nil:
				t.Error(err)
			case c.line > 0 && (!errors.As(err, &s) || s.Line != c.line || !errors.Is(err, errTooDeep)):
				t.Errorf("error %v", err)
			}
		})
	}
	docs, err := SplitJSON("{}\n[1,\n" + nested(100) + "]{}")
	var s *SyntaxError
	if len(docs) != 1 || !errors.As(err, &s) || s.Line != 3 || !errors.Is(err, errTooDeep) {
		t.Errorf("%v, %v", docs, err)
	}
	if docs, err := SplitJSON(nested(100) + `"[[\\\"[["`); len(docs) != 2 || err != nil {
		t.Errorf("%d documents, %v", len(docs), err)
	}
}
