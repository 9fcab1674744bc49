package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// row is one endpoint in the table.
type row struct {
	name, zone string
	state      string // ready, not ready, terminating, gone
	wanted     float64
	counted    int // connections
	why        string
}

// table shows endpoints with their decided and measured shares.
type table struct {
	rows []row
	note string // below the rows
}

// paint colors texts, if true.
type paint bool

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

var (
	zoneColours  = []string{"36", "35", "34", yellow}
	stateColours = map[string]string{"ready": green, "terminating": yellow, "not ready": red, "gone": dim}
)

func (p paint) as(color, text string) string {
	if !p || text == "" || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// barShare is the share of a full bar; larger shares are clipped.
const barShare = 0.48

// bar draws a measured share in eighths of cells, and a mark in the cell of the wanted share if the bar does not reach it.
func bar(measured, wanted float64, cells int) (filled, rest string) {
	eighths := int(min(measured/barShare, 1)*float64(cells*8) + .5)
	filled = strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		filled += string([]rune("▏▎▍▌▋▊▉")[part-1])
	}
	used := utf8.RuneCountInString(filled)
	left := []rune(strings.Repeat(" ", cells-used))
	if mark := int(wanted / barShare * float64(cells)); wanted > 0 && mark >= used && mark < cells {
		left[mark-used] = '┊'
	}
	return filled, string(left)
}

// lines draws the table for a terminal of a width.
func (b *table) lines(p paint, width int) []string {
	total, names, prefix := 0, 8, 0
	if width < narrow {
		prefix = b.prefix()
	}
	var zones []string
	for _, r := range b.rows {
		total += r.counted
		names = max(names, utf8.RuneCountInString(shorten(r.name, prefix)))
		if !slices.Contains(zones, r.zone) {
			zones = append(zones, r.zone)
		}
	}
	slices.Sort(zones)
	fixed := names + 51 // all columns but the bar and the reason
	cells := max(6, min(24, (width-fixed)/3))
	head := fmt.Sprintf("  %-*s  %-6s  %-11s  %6s  %8s  %-*s %5s  %s",
		names, "ENDPOINT", "ZONE", "STATE", "WANTED", "MEASURED", cells, "", "CONNS", "WHY")
	out := []string{p.as(dim, truncate(head, width))}
	for _, r := range b.rows {
		share := 0.0
		if total > 0 {
			share = float64(r.counted) / float64(total)
		}
		zone := zoneColours[slices.Index(zones, r.zone)%len(zoneColours)]
		filled, rest := bar(share, r.wanted, cells)
		out = append(out, fmt.Sprintf("  %s  %s  %s  %s  %s  %s%s %s  %s",
			pad(shorten(r.name, prefix), names), p.as(zone, pad(r.zone, 6)), p.as(stateColours[r.state], pad(r.state, 11)),
			percent(r.wanted, 6), percent(share, 8), p.as(zone, filled), p.as(dim, rest),
			p.as(bold, fmt.Sprintf("%5d", r.counted)), p.as(dim, truncate(r.why, max(0, width-fixed-cells)))))
	}
	if b.note != "" {
		out = append(out, "  "+p.as(dim, truncate(b.note, width-2)))
	}
	return out
}

// narrow is the width below which the common prefix of Pod names is omitted.
const narrow = 130

// prefix returns the length of the common prefix of all names, up to a hyphen.
func (b *table) prefix() int {
	if len(b.rows) < 2 {
		return 0
	}
	first := b.rows[0].name
	n := len(first)
	for _, r := range b.rows {
		for !strings.HasPrefix(r.name, first[:n]) {
			n--
		}
	}
	return strings.LastIndex(first[:n], "-") + 1
}

func shorten(name string, prefix int) string {
	if prefix == 0 {
		return name
	}
	return "…" + name[prefix:]
}

func percent(share float64, width int) string {
	if share == 0 {
		return fmt.Sprintf("%*s", width, "–")
	}
	return fmt.Sprintf("%*.1f %%", width-2, 100*share)
}

func pad(s string, width int) string { return fmt.Sprintf("%-*s", width, s) }

// truncate truncates a text to width cells.
func truncate(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:max(0, width-1)]) + "…"[:min(len("…"), width*len("…"))]
	}
	return s
}

// wrap wraps a text into lines of at most width cells.
func wrap(s string, width int) []string {
	var out []string
	line, used := "", 0
	for _, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		if line != "" && used+1+n > width {
			out, line, used = append(out, line), "", 0
		}
		if line != "" {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}
