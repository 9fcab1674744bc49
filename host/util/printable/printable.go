// Package printable escapes what a terminal or a log would not print: control characters such as ESC, which move the cursor or
// change colors, line breaks, which forge lines, characters that reverse or hide text (bidirectional overrides, zero-width
// spaces), and bytes that are not UTF-8. Names in API objects, what plugins return and log, and file names may contain all of
// them.
//
// The escapes are those of JSON: \n, \t, \r, \u001b; and \xff for a byte that is not UTF-8. So JSON that passes through a
// Writer keeps its meaning.
package printable

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape returns s in one line, with escapes in the place of all characters that are not printable, as strconv.IsPrint
// defines it, and without secrets, see Redact.
func Escape(s string) string {
	s = redact(s)
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	return string(escape(nil, []byte(s), ""))
}

// escape appends text to out, without escaping the characters in keep.
func escape(out, text []byte, keep string) []byte {
	for len(text) > 0 {
		ascii := 0
		for ascii < len(text) && text[ascii] >= ' ' && text[ascii] <= '~' {
			ascii++
		}
		out, text = append(out, text[:ascii]...), text[ascii:]
		if len(text) == 0 {
			break
		}
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, text[0])
		case strconv.IsPrint(r) || strings.ContainsRune(keep, r):
			out = append(out, text[:n]...)
		case r == '\n':
			out = append(out, `\n`...)
		case r == '\t':
			out = append(out, `\t`...)
		case r == '\r':
			out = append(out, `\r`...)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out
}

// Writer escapes what is written to it, except line feeds and tabs: those are the layout. What may contain others than
// its own has to pass Escape before. Writer is safe for concurrent use.
type Writer struct {
	to io.Writer

	mu      sync.Mutex
	partial []byte // the beginning of a character whose end has not been written yet
	buf     []byte
}

// NewWriter returns a Writer to another writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.partial, p...)
	end := len(text)
	for i := 1; i < utf8.UTFMax && i <= end; i++ {
		if utf8.RuneStart(text[end-i]) {
			if !utf8.FullRune(text[end-i:]) {
				end -= i
			}
			break
		}
	}
	w.buf = escape(w.buf[:0], Redact(text[:end]), "\n\t")
	w.partial = append(w.partial[:0], text[end:]...)
	if _, err := w.to.Write(w.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Lines returns the message of an error, one line for each error that it joins. Line breaks within an error are escaped.
func Lines(err error) []string {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		var texts, lines []string
		for _, joined := range e.Unwrap() {
			texts = append(texts, joined.Error())
			lines = append(lines, Lines(joined)...)
		}
		if strings.Join(texts, "\n") == err.Error() {
			return lines
		}
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			if prefix, ok := strings.CutSuffix(err.Error(), cause.Error()); ok {
				lines := Lines(cause)
				for i := range lines {
					lines[i] = Escape(prefix) + lines[i]
				}
				return lines
			}
		}
	}
	return []string{Escape(err.Error())}
}
