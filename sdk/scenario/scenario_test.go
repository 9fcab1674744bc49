package scenario_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

const text = `# A node leaves.
node a1 zone=zone-a
settings ` + "`{\"factor\": 4}`" + `   # in Go quotes

endpoint "web 0" note="a \"b\"" empty= url=http://x/?a=b
decide
> web 0  100 %
>   indented
>
at 10s
after 1m30s
	decide  
at 1m40s
restart
`

func parse(t testing.TB, text string) *scenario.File {
	t.Helper()
	f, err := scenario.Parse("x.scenario", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAScenarioIsParsed(t *testing.T) {
	f := parse(t, text)
	want := []scenario.Statement{
		{Line: 2, Verb: "node", Args: []string{"a1"}, Options: []scenario.Option{{Key: "zone", Value: "zone-a"}}},
		{Line: 3, Verb: "settings", Args: []string{`{"factor": 4}`}},
		{Line: 5, Verb: "endpoint", Args: []string{"web 0"}, Options: []scenario.Option{
			{Key: "note", Value: `a "b"`}, {Key: "empty", Value: ""}, {Key: "url", Value: "http://x/?a=b"}}},
		{Line: 6, Verb: "decide", Expect: []string{"web 0  100 %", "  indented", ""}},
		{Line: 12, Verb: "decide", At: 100 * time.Second},
		{Line: 14, Verb: "restart", At: 100 * time.Second},
	}
	if f.Name != "x.scenario" || !reflect.DeepEqual(f.Statements, want) {
		t.Errorf("%s:\n%+v, want\n%+v", f.Name, f.Statements, want)
	}
	if v, ok := f.Statements[2].Option("empty"); v != "" || !ok {
		t.Errorf("empty: %q, %v", v, ok)
	}
	if _, ok := f.Statements[2].Option("note="); ok {
		t.Error("an option that is not there")
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	for text, want := range map[string]string{
		"> a":                                 "x.scenario:1: expected output must be directly below a statement",
		"a\n\n> b":                            "x.scenario:3: expected output must be directly below",
		"a\n# c\n> b":                         "x.scenario:3: expected output must be directly below",
		"at 1s\n> b":                          "x.scenario:2: expected output must be directly below",
		"\nA":                                 "x.scenario:2: a line must begin with a verb",
		"a=b":                                 "a line must begin with a verb",
		`"a"`:                                 "a line must begin with a verb",
		"-a":                                  "a line must begin with a verb",
		"a x=1 x=2":                           "x.scenario:1: a: option x= twice",
		"a =1":                                "an option without a key: =1",
		`a {"b":1}`:                           "a quote inside of {\"b\":1}: put the whole word into double quotes or backquotes",
		`a "b`:                                `no Go string in double quotes or backquotes: "b`,
		`a "b"c`:                              `white space must follow "b"`,
		`a "\xff"`:                            "not a Go string in UTF-8",
		"a \x1b[31m":                          `byte 3: '\x1b' is not printable: write it as \u001b`,
		"a \xff":                              "invalid UTF-8",
		"at":                                  "x.scenario:1: at: want one duration",
		"at 1s x=1":                           "at: want one duration",
		"after x":                             `after: "x" is not a duration: want whole milliseconds or more, for example 500ms`,
		"after 10us":                          `"10us" is not a duration`,
		"after -1s":                           `"-1s" is not a duration`,
		"at 25h":                              "at 25h0m0s: a step of 25h0m0s, at most 24h0m0s are allowed",
		"clock":                               "clock: want one time of day in UTC, for example `clock 22:00`",
		"clock 24:00":                         `clock: "24:00" is not a time of day: want hours and minutes in UTC`,
		"at 1s\nclock 22:00":                  "clock 22:00: the time of day is not known: begin the file with it",
		"clock 22:00\nclock 22:00":            "clock 22:00: it is 22:00 already",
		"clock 22:00\nverb\nclock 23:00":      "no statement follows at this time",
		"at 10s\na\nat 9s\na":                 "x.scenario:3: at 9s: it is already 10s",
		"a\nat 10s\n# the end":                "x.scenario:2: no statement follows at this time",
		"a " + strings.Repeat("b ", 100):      "more than 100 words",
		strings.Repeat("a\n", 10_001):         "x.scenario:10001: more than 10000 statements",
		"a\n" + strings.Repeat(">\n", 10_001): "x.scenario:10002: more than 10000 expected lines",
		"#" + strings.Repeat("b", 70_000):     "a line of 70001 bytes, at most 65536 are allowed",
		strings.Repeat("#\n", 1<<20):          "x.scenario: 2097152 bytes, at most 1048576 are allowed",
	} {
		if _, err := scenario.Parse("x.scenario", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", text, err, want)
		}
	}
}

// TestAClockSetsTheBeginningAndMovesTheTime: past midnight too.
func TestAClockSetsTheBeginningAndMovesTheTime(t *testing.T) {
	f := parse(t, "# the evening\nclock 21:59\na\nclock 22:00\nb\nafter 1s\nclock 06:30:15\nc\n")
	from := time.Date(2026, 1, 1, 23, 0, 0, 0, time.UTC)
	want := []time.Duration{0, time.Minute, 8*time.Hour + 31*time.Minute + 15*time.Second}
	for i := range f.Statements {
		if got := f.Statements[i].At; got != want[i] {
			t.Errorf("statement %d at %s, want %s", i, got, want[i])
		}
	}
	if got := f.Begin(from); !f.HasClock() || got != time.Date(2026, 1, 2, 21, 59, 0, 0, time.UTC) {
		t.Errorf("it begins at %s", got)
	}
	if got := f.TimeText(&f.Statements[2]); got != "8h31m15s after the beginning, at 06:30:15 UTC" {
		t.Error(got)
	}
	if f = parse(t, "a"); f.HasClock() || f.Begin(from) != from {
		t.Error("a scenario without a clock has one")
	}
	if got := scenario.NextTimeOfDay(from, 23*time.Hour); got != from {
		t.Errorf("the next 23:00 from 23:00 on is %s", got)
	}
}

func TestFormatReplacesExpectedLinesOnly(t *testing.T) {
	f := parse(t, "# c\n\na  x=1 # d\n  > old\n> older\n\nat 1s\nb")
	got := string(f.Format(func(i int) []string { return [][]string{{"one", "", "  two "}, {"three"}}[i] }))
	if want := "# c\n\na  x=1 # d\n> one\n>\n>   two\n\nat 1s\nb\n> three\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if same := string(f.Format(func(i int) []string { return nil })); same != "# c\n\na  x=1 # d\n\nat 1s\nb" {
		t.Errorf("without expected lines: %q", same)
	}
}

var verbs = scenario.NewVerbs(usages("zone NAME lost|back", "restart [NAME]", "remove NAME…", "drain SERVICE [grace=DURATION] [pods=N|P%]", "open [POD=NUMBER…]", "decide",
	"pod NAME [ready=true|false] [label:KEY=VALUE]")...)

func usages(lines ...string) (out []scenario.Verb[*testing.T]) {
	for _, l := range lines {
		out = append(out, scenario.Verb[*testing.T]{Usage: l})
	}
	return out
}

func TestVerbsAreChecked(t *testing.T) {
	if err := verbs.Check(parse(t, "zone a lost\nrestart\nrestart x\nremove a b c\ndrain x\ndrain x pods=3 grace=1s\nopen a=1 c=d\ndecide\npod p ready=true label:a/b=c label:d=")); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"\nundo":            "x.scenario:2: unknown verb undo: want one of decide, drain, open, pod, remove, restart, zone",
		"zone":              "x.scenario:1: zone: NAME is missing (usage: zone NAME lost|back)",
		"zone a":            "zone: lost|back is missing",
		"zone a gone":       `zone: "gone": want lost or back`,
		"zone a lost x":     `zone: unexpected argument "x"`,
		"drain x grace=1":   `drain: grace: "1" is not a duration`,
		"drain x grace=25h": "drain: grace: 25h0m0s: more than 24h0m0s",
		"decide x":          `decide: unexpected argument "x"`,
		"restart x y":       `restart: unexpected argument "y"`,
		"remove":            "remove: NAME is missing",
		"drain x speed=1":   "drain: unknown option speed= (usage: drain SERVICE [grace=DURATION] [pods=N|P%])",
		"zone a lost pods=": "zone: unknown option pods=",
		"pod p ready=yes":   `pod: ready: "yes": want true or false`,
		"pod p label:=x":    "pod: unknown option label:=",
		"pod p labels:a=x":  "pod: unknown option labels:a=",
	} {
		if err := verbs.Check(parse(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if got := verbs.Usage("restart"); got != "restart [NAME]" {
		t.Errorf("usage %q", got)
	}
}

func TestWrongUsageLinesPanic(t *testing.T) {
	for _, lines := range [][]string{{""}, {"A"}, {"a", "a"}, {"a x=1"}, {"a B… C"}, {"a [B] C"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q: no panic", lines)
				}
			}()
			scenario.NewVerbs(usages(lines...)...)
		}()
	}
}

// FuzzParse checks that what is parsed survives Format with the same expected lines, and that other expected lines change nothing
// else.
func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte("a\r\n> b\r\n>\r\nat 1s\r\nb\r\n"))
	f.Add([]byte("a x=`y` \"z\"\n>> b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		one, err := scenario.Parse("f", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%v does not name the file", err)
			}
			return
		}
		_ = verbs.Check(one)
		two := parse(t, string(one.Format(func(i int) []string { return one.Statements[i].Expect })))
		if !reflect.DeepEqual(one.Statements, two.Statements) {
			t.Errorf("%+v, after Format %+v", one.Statements, two.Statements)
		}
		lines := []string{"x", "", "> y", "# z"}
		three := parse(t, string(one.Format(func(int) []string { return lines })))
		for i, s := range three.Statements {
			if !reflect.DeepEqual(s.Expect, lines) {
				t.Errorf("expected lines %q", s.Expect)
			}
			s.Expect, s.Line = one.Statements[i].Expect, one.Statements[i].Line
			if !reflect.DeepEqual(s, one.Statements[i]) {
				t.Errorf("%+v, with other expected lines %+v", one.Statements[i], s)
			}
		}
	})
}
