package vm

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// stream is the guest's console. It passes on what the program writes: all between a line that says that it begins
// and one that says how it ended. The latter is the last thing in the stream, so nothing before it was lost.
type stream struct {
	to    io.Writer
	nonce string

	buf   []byte // not passed on yet
	begun bool
	ended bool
	code  int
	err   error // of to
}

func beginLine(nonce string) string         { return "\n[vm " + nonce + " begins]\n" }
func endLine(nonce string, code int) string { return fmt.Sprintf("%s%d]\n", endMark(nonce), code) }
func endMark(nonce string) string           { return "\n[vm " + nonce + " ends with " }

// Write never fails: the kernel must be able to say everything, or it never ends.
func (s *stream) Write(p []byte) (int, error) {
	if s.ended {
		return len(p), nil
	}
	s.buf = append(s.buf, p...)
	if !s.begun {
		_, after, ok := bytes.Cut(s.buf, []byte(beginLine(s.nonce)))
		if !ok {
			return len(p), nil
		}
		s.buf, s.begun = after, true
	}
	mark := endMark(s.nonce)
	if before, after, ok := bytes.Cut(s.buf, []byte(mark)); ok {
		text, _, whole := strings.Cut(string(after), "]\n")
		if code, err := strconv.Atoi(text); whole && err == nil {
			s.pass(before)
			s.buf, s.ended, s.code = nil, true, code
		}
		return len(p), nil
	}
	keep := 0
	for n := min(len(mark), len(s.buf)); n > 0; n-- {
		if bytes.HasSuffix(s.buf, []byte(mark[:n])) {
			keep = n
			break
		}
	}
	s.pass(s.buf[:len(s.buf)-keep])
	s.buf = append([]byte(nil), s.buf[len(s.buf)-keep:]...)
	return len(p), nil
}

func (s *stream) pass(p []byte) {
	if len(p) > 0 && s.err == nil {
		_, s.err = s.to.Write(p)
	}
}

// flush passes on what was kept back, when no more comes.
func (s *stream) flush() {
	if s.begun && !s.ended {
		s.pass(s.buf)
		s.buf = nil
	}
}

// boot is what the kernel said before the program began, when it never did.
func (s *stream) boot() string {
	text := strings.TrimSpace(string(s.buf))
	if s.begun || text == "" {
		return ""
	}
	return ": " + text
}
