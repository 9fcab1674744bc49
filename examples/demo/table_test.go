package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

func exampleTable() *table {
	return &table{rows: []row{
		{"catalog-a1", "zone-a", "ready", .4, 1610, "in this zone"},
		{"catalog-a2", "zone-a", "terminating", .2, 790, "draining: stage 2 of 3, 50 %"},
		{"catalog-b1", "zone-b", "ready", .4, 1600, "spill"},
		{"catalog-b2", "zone-b", "gone", 0, 0, ""},
	}}
}

func TestTableShowsWantedAndMeasuredShares(t *testing.T) {
	want := []string{
		"  ENDPOINT    ZONE    STATE        WANTED  MEASURED                           CONNS  WHY",
		"  catalog-a1  zone-a  ready        40.0 %    40.2 %  ████████████████████▏     1610  in this zone",
		"  catalog-a2  zone-a  terminating  20.0 %    19.8 %  █████████▉┊                790  draining: stage 2 of 3, 50 %",
		"  catalog-b1  zone-b  ready        40.0 %    40.0 %  ████████████████████┊     1600  spill",
		"  catalog-b2  zone-b  gone              –         –                               0",
	}
	got := exampleTable().lines(false, 160)
	for i := range want {
		if strings.TrimRight(got[i], " ") != want[i] {
			t.Errorf("line %d:\n got %q\nwant %q", i, got[i], want[i])
		}
	}
}

func TestTableShortensNamesOnNarrowTerminals(t *testing.T) {
	b := exampleTable()
	want := "  …a1       zone-a  ready        40.0 %    40.2 %  ████████████████▊     1610  in this zone"
	if got := b.lines(false, 120)[1]; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	b.rows = b.rows[:1]
	if got := b.lines(false, 120)[1]; !strings.Contains(got, "catalog-a1") {
		t.Errorf("a single row: %q", got)
	}
}

func TestColoredTableHasTheSameText(t *testing.T) {
	b := exampleTable()
	plain, colored := b.lines(false, 120), b.lines(true, 120)
	for i := range plain {
		if colored[i] == plain[i] {
			t.Errorf("line %d has no colors", i)
		}
		if got := colors.ReplaceAllString(colored[i], ""); got != plain[i] {
			t.Errorf("line %d:\n got %q\nwant %q", i, got, plain[i])
		}
	}
}

func TestTableFitsTheWidth(t *testing.T) {
	b := exampleTable()
	b.note = strings.Repeat("long ", 60)
	for _, width := range []int{70, 80, 100, 120} {
		for _, l := range b.lines(false, width) {
			if n := utf8.RuneCountInString(l); n > width {
				t.Errorf("width %d: a line of %d: %q", width, n, l)
			}
		}
	}
}

func TestBarIsClipped(t *testing.T) {
	for _, share := range []float64{0, .001, .1, .333, barShare, .9, 1} {
		filled, rest := bar(share, .25, 24)
		if n := utf8.RuneCountInString(filled + rest); n != 24 {
			t.Errorf("share %g: %d cells, want 24", share, n)
		}
	}
	if filled, _ := bar(1, 1, 24); filled != strings.Repeat("█", 24) {
		t.Errorf("a share of 1: %q", filled)
	}
}

func TestWrapAndTruncate(t *testing.T) {
	if got := strings.Join(wrap("one two  three four", 9), "|"); got != "one two|three|four" {
		t.Errorf("wrap: %q", got)
	}
	for width, want := range map[int]string{0: "", 1: "…", 4: "abc…", 6: "abcdef", 9: "abcdef"} {
		if got := truncate("abcdef", width); got != want {
			t.Errorf("cut to %d: %q, want %q", width, got, want)
		}
	}
}

func TestScreenReplacesLiveLines(t *testing.T) {
	var b strings.Builder
	s := &screen{w: &b, live: true, size: func() (int, int) { return 80, 24 }}
	s.draw([]string{"one", "two"})
	s.draw([]string{"uno", "dos"})
	s.printLines("done")
	want := "one\x1b[K\ntwo\x1b[K\n\x1b[J" + "\x1b[2A\runo\x1b[K\ndos\x1b[K\n\x1b[J" + "\x1b[2A\r\x1b[Jdone\n"
	if b.String() != want {
		t.Errorf("got %q\nwant %q", b.String(), want)
	}
}

func TestScreenWithoutTerminalPrintsFinalLinesOnly(t *testing.T) {
	var b strings.Builder
	s := &screen{w: &b, size: func() (int, int) { return plainWidth, 0 }}
	s.draw([]string{"one"})
	s.paragraph("the %s", "end")
	if b.String() != "the end\n" {
		t.Errorf("got %q", b.String())
	}
}
