package vm

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// stream is the guest's console. It forwards the program's output, which is between a begin line and an end line with the
// exit code. The end line is the last of the stream, so that its presence shows that no output was lost.
type stream struct {
	to    io.Writer
	nonce string

	buf   []byte // not forwarded yet
	begun bool
	ended bool
	code  int
	err   error // of to
}

func beginLine(nonce string) string         { return "\n[vm " + nonce + " begins]\n" }
func endLine(nonce string, code int) string { return fmt.Sprintf("%s%d]\n", endMark(nonce), code) }
func endMark(nonce string) string           { return "\n[vm " + nonce + " ends with " }

// Write never fails: the guest would block on its console.
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
			s.forward(before)
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
	s.forward(s.buf[:len(s.buf)-keep])
	s.buf = append([]byte(nil), s.buf[len(s.buf)-keep:]...)
	return len(p), nil
}

func (s *stream) forward(p []byte) {
	if len(p) > 0 && s.err == nil {
		_, s.err = s.to.Write(p)
	}
}

// flush forwards the rest when no more output comes.
func (s *stream) flush() {
	if s.begun && !s.ended {
		s.forward(s.buf)
		s.buf = nil
	}
}

// bootLog returns the kernel's output if the program never started.
func (s *stream) bootLog() string {
	text := strings.TrimSpace(string(s.buf))
	if s.begun || text == "" {
		return ""
	}
	return ": " + text
}
