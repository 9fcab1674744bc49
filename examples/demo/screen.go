package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// screen prints the demo. On a terminal the last lines are live: draw replaces them. Otherwise only final lines are printed.
type screen struct {
	w     io.Writer
	paint paint
	live  bool
	size  func() (width, height int)
	drawn int // number of live lines
}

// plainWidth is the width without a terminal, for example in a log file.
const plainWidth = 160

func newScreen(f *os.File) *screen {
	s := &screen{w: f, size: func() (int, int) { return plainWidth, 0 }}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil || os.Getenv("TERM") == "dumb" {
		return s
	}
	s.live, s.paint = true, os.Getenv("NO_COLOR") == ""
	s.size = func() (int, int) {
		if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && w.Col >= 40 {
			return int(w.Col), int(w.Row)
		}
		return 80, 24
	}
	return s
}

// headline prints the title of a step.
func (s *screen) headline(text string) { s.printLines("", s.paint.as(bold, text)) }

// paragraph prints a paragraph.
func (s *screen) paragraph(format string, args ...any) {
	width, _ := s.size()
	s.printLines(wrap(fmt.Sprintf(format, args...), min(width, 110))...)
}

// note prints a line, truncated to the width.
func (s *screen) note(color, format string, args ...any) {
	width, _ := s.size()
	s.printLines(s.paint.as(color, truncate(fmt.Sprintf(format, args...), width)))
}

// status prints a paragraph with a mark.
func (s *screen) status(color, mark, format string, args ...any) {
	width, _ := s.size()
	lines := wrap(fmt.Sprintf(format, args...), min(width, plainWidth)-2)
	for i, l := range lines {
		lines[i] = s.paint.as(color, "  "+l)
	}
	if len(lines) > 0 {
		lines[0] = strings.Replace(lines[0], "  ", mark+" ", 1)
	}
	s.printLines(lines...)
}

// draw shows live lines until the next draw or printLines. A table higher than the screen is not drawn.
func (s *screen) draw(lines []string) {
	if _, height := s.size(); !s.live || len(lines) >= height {
		return
	}
	var b strings.Builder
	s.rewind(&b)
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	s.drawn = len(lines)
	s.write(b.String())
}

// printLines replaces the live lines by final ones.
func (s *screen) printLines(lines ...string) {
	var b strings.Builder
	s.rewind(&b)
	if s.live {
		b.WriteString("\x1b[J")
	}
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	s.drawn = 0
	s.write(b.String())
}

func (s *screen) rewind(b *strings.Builder) {
	if s.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r", s.drawn)
	}
}

// write ignores errors: a closed pipe ends the demo by SIGPIPE.
func (s *screen) write(text string) { _, _ = io.WriteString(s.w, text) }
