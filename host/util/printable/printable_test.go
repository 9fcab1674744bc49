package printable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

var hostile = []string{
	"", "plain → µ %", "a\x1b[2K\x1b[1Ab", "two\nlines\r\ttab", "\x7f\u0085\u009b31m", "\u202egnp.exe\u2066", "zero\u200bwidth\ufeff\u00ad",
	"sep\u2028\u2029", "not \xff\xc3 utf8", "\u00a0\u3000", "\U000e0041tag", "\ufffd", "half \xf0\x9f\x98", "\x00",
}

func checkPrintable(t *testing.T, s, layout string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("%q is not UTF-8", s)
	}
	for _, r := range s {
		if !strconv.IsPrint(r) && !strings.ContainsRune(layout, r) {
			t.Errorf("%q contains %U", s, r)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain → µ": "plain → µ", "\x1b[31m": `\u001b[31m`, "a\nb\tc\r": `a\nb\tc\r`, "\u202e": `\u202e`, "\xff": `\xff`, "\ufffd": "\ufffd",
		"\U000e0041": `\udb40\udc41`, `back\slash`: `back\slash`,
	} {
		if got := printable.Escape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := printable.Escape(s)
		checkPrintable(t, got, "")
		if again := printable.Escape(got); again != got {
			t.Errorf("%q is escaped again: %q", got, again)
		}
		// However it is cut into writes, a Writer escapes the same, except for line feeds and tabs.
		var whole, bytewise bytes.Buffer
		fmt.Fprint(printable.NewWriter(&whole), s+".")
		if _, err := io.Copy(struct{ io.Writer }{printable.NewWriter(&bytewise)}, iotest.OneByteReader(strings.NewReader(s+"."))); err != nil {
			t.Fatal(err)
		}
		if whole.String() != bytewise.String() {
			t.Errorf("%q, by bytes %q", whole.String(), bytewise.String())
		}
		checkPrintable(t, whole.String(), "\n\t")
		if layout := strings.NewReplacer("\n", `\n`, "\t", `\t`); layout.Replace(whole.String()) != got+"." {
			t.Errorf("written %q, escaped %q", whole.String(), got)
		}
		// JSON keeps its meaning.
		in := map[string]string{s: s}
		var out bytes.Buffer
		if err := json.NewEncoder(printable.NewWriter(&out)).Encode(in); err != nil {
			t.Fatal(err)
		}
		direct, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var want, decoded map[string]string
		if err := errors.Join(json.Unmarshal(direct, &want), json.Unmarshal(out.Bytes(), &decoded)); err != nil || !reflect.DeepEqual(want, decoded) {
			t.Errorf("%q instead of %q, %v", decoded, want, err)
		}
	})
}

func TestStringsEscapesACopy(t *testing.T) {
	type inner struct {
		Name string
		At   *time.Time
	}
	type outer struct {
		Name   string
		List   []inner
		Map    map[string][]string
		Any    any
		Pair   [2]string
		Nil    *inner
		hidden string
	}
	at := time.Unix(1, 0)
	value := func(s string) *outer {
		return &outer{s, []inner{{s, &at}}, map[string][]string{s: {s}}, s, [2]string{s, s}, nil, s}
	}
	for _, s := range hostile {
		in := value(s)
		got := printable.Strings(in)
		if !reflect.DeepEqual(in, value(s)) {
			t.Fatalf("%q: the original was changed: %+v", s, in)
		}
		want := value(printable.Escape(s))
		want.hidden = s
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if printable.Strings[*outer](nil) != nil || printable.Strings([]string(nil)) != nil {
		t.Error("nil is not kept")
	}
}

func TestLinesOfErrors(t *testing.T) {
	evil := errors.New("a\nsluice: forged\x1b")
	for _, c := range []struct {
		err  error
		want []string
	}{
		{evil, []string{`a\nsluice: forged\u001b`}},
		{errors.Join(evil, errors.New("b")), []string{`a\nsluice: forged\u001b`, "b"}},
		{fmt.Errorf("load: %w", errors.Join(errors.New("a"), fmt.Errorf("b: %w", evil))), []string{"load: a", `load: b: a\nsluice: forged\u001b`}},
		{fmt.Errorf("x\n: %w", evil), []string{`x\n: a\nsluice: forged\u001b`}},
		{fmt.Errorf("%w\n%w", evil, evil), []string{`a\nsluice: forged\u001b`, `a\nsluice: forged\u001b`}},
		{fmt.Errorf("%w and %w", evil, evil), []string{`a\nsluice: forged\u001b and a\nsluice: forged\u001b`}},
		{fmt.Errorf("%w (later)", evil), []string{`a\nsluice: forged\u001b (later)`}},
	} {
		if got := printable.Lines(c.err); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %q, want %q", c.err, got, c.want)
		}
	}
}
