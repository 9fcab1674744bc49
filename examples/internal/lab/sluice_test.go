package lab

import (
	"strings"
	"testing"
)

func TestLogLinesStartAtAMark(t *testing.T) {
	s := &Sluice{}
	const log = "level=ERROR one\nlevel=INFO two\n"
	var file strings.Builder
	s.follow(strings.NewReader(log), &file)
	if file.String() != log {
		t.Errorf("the file has %q", file.String())
	}
	lines, mark := s.LogLines(0, "ERROR")
	if len(lines) != 1 || mark != 2 {
		t.Errorf("got %q and mark %d", lines, mark)
	}
	if lines, _ := s.LogLines(mark, "ERROR"); len(lines) != 0 {
		t.Errorf("after the mark: %q", lines)
	}
}
