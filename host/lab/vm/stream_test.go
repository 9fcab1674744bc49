package vm

import (
	"errors"
	"strings"
	"testing"
)

// TestStreamForwardsOutputBetweenMarks feeds each text whole, and in pieces of every size.
func TestStreamForwardsOutputBetweenMarks(t *testing.T) {
	const nonce = "N"
	for name, c := range map[string]struct {
		in, out string
		ended   bool
		code    int
	}{
		"a whole run":                 {"boot" + beginLine(nonce) + "a\nb" + endLine(nonce, 3), "a\nb", true, 3},
		"nothing written":             {beginLine(nonce) + endLine(nonce, 0), "", true, 0},
		"what comes after the end":    {beginLine(nonce) + "a" + endLine(nonce, 0) + "reboot: power down", "a", true, 0},
		"another machine's marks":     {beginLine(nonce) + endLine("M", 0) + "a" + endLine(nonce, 1), endLine("M", 0) + "a", true, 1},
		"died while it ran":           {beginLine(nonce) + "a\npanic\n[v", "a\npanic\n[v", false, 0},
		"died while printing the end": {beginLine(nonce) + "a" + endMark(nonce) + "1", "a" + endMark(nonce) + "1", false, 0},
		"the end is garbled":          {beginLine(nonce) + "a" + endMark(nonce) + "x]\n", "a" + endMark(nonce) + "x]\n", false, 0},
		"died at boot":                {"boot\npanic", "", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(c.in); size++ {
				var out strings.Builder
				s := &stream{to: &out, nonce: nonce}
				for rest := c.in; rest != ""; {
					n := min(size, len(rest))
					if _, err := s.Write([]byte(rest[:n])); err != nil {
						t.Fatal(err)
					}
					rest = rest[n:]
				}
				s.flush()
				if out.String() != c.out || s.ended != c.ended || s.code != c.code {
					t.Fatalf("pieces of %d: wrote %q, ended %v with %d; want %q, %v, %d", size, out.String(), s.ended, s.code, c.out, c.ended, c.code)
				}
			}
		})
	}
}

func TestStreamForwardsWithoutDelay(t *testing.T) {
	var out strings.Builder
	s := &stream{to: &out, nonce: "N"}
	_, _ = s.Write([]byte(beginLine("N") + "ok\n"))
	if out.String() != "ok" { // the newline may begin the mark
		t.Errorf("%q", out.String())
	}
	_, _ = s.Write([]byte("x"))
	if out.String() != "ok\nx" {
		t.Errorf("%q", out.String())
	}
}

type broken struct{ error }

func (b broken) Write([]byte) (int, error) { return 0, b.error }

func TestWriteErrorDoesNotBlockGuest(t *testing.T) {
	full := errors.New("full")
	s := &stream{to: broken{full}, nonce: "N"}
	if _, err := s.Write([]byte(beginLine("N") + "a" + endLine("N", 0))); err != nil || s.err != full || !s.ended {
		t.Error(err, s.err, s.ended)
	}
}
