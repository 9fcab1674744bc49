package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// Sizes of the figure in pixels. A panel has the connections of each endpoint and, below, failed connections.
const (
	panelWidth, plotHeight, barHeight = 300, 120, 36
	marginLeft, marginTop             = 40, 34
	panelGap, rowGap                  = 14, 30
	textSize                          = 10
)

// Colours of the figure, which can be told apart without seeing red and green.
const (
	oldColour, newColour                     = "#4878a8", "#e8962e"
	refusedColour, resetColour, hungColour   = "#d62728", "#8c1c13", "#1a1a1a"
	axisColour, textColour, backgroundColour = "#999", "#222", "#fff"
)

// chart draws results as SVG: a row for each group of experiments, a panel for each experiment.
func chart(results []*result, mode string) string {
	var groups [][]*result
	for i, r := range results {
		if i == 0 || r.group != results[i-1].group {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], r)
	}
	across := 4 // panels at least: the width of the legend
	for _, g := range groups {
		across = max(across, len(g))
	}
	rowHeight := marginTop + plotHeight + barHeight + rowGap
	width, height := across*(panelWidth+panelGap)+panelGap, len(groups)*rowHeight+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d" fill="%s">
<rect width="%d" height="%d" fill="%s"/>
`, width, height, textSize, textColour, width, height, backgroundColour)
	for row, g := range groups {
		for column, r := range g {
			fmt.Fprintf(&b, "<g transform=\"translate(%d %d)\">\n", panelGap+column*(panelWidth+panelGap), row*rowHeight)
			panel(&b, r, scaleOf(g))
			b.WriteString("</g>\n")
		}
	}
	legend(&b, height-8, mode)
	b.WriteString("</svg>\n")
	return b.String()
}

// scale is what the panels of a group have in common.
type scale struct {
	most, failed int // connections of an endpoint, failed connections in a bar
	took         time.Duration
}

// barSeconds is what a bar of failed connections covers.
const barSeconds = 1

func scaleOf(group []*result) (s scale) {
	s.failed = 1
	for _, r := range group {
		s.most, s.took = max(s.most, r.most()), max(s.took, r.took)
		for _, f := range r.bars() {
			n := 0
			for _, k := range f {
				n += k
			}
			s.failed = max(s.failed, n)
		}
	}
	s.most = (s.most + 49) / 50 * 50
	return s
}

// bars returns the failed connections of each second.
func (r *recorder) bars() [][failures]int {
	var out [][failures]int
	for i := range r.series {
		at := int(r.series[i].at.Seconds() / barSeconds)
		for len(out) <= at {
			out = append(out, [failures]int{})
		}
		for f, n := range r.series[i].failed {
			out[at][f] += n
		}
	}
	return out
}

// panel draws one experiment.
func panel(b *strings.Builder, r *result, s scale) {
	n, failed := r.connections(), r.failedTotal()
	fmt.Fprintf(b, `<text x="0" y="14" font-weight="bold">%s: %s</text>`+"\n", html.EscapeString(r.group), html.EscapeString(r.name))
	text := fmt.Sprintf("%d of %d connections failed", failed, n)
	if r.shed > 0 {
		text += fmt.Sprintf(", %d were moved", r.shed)
	}
	fmt.Fprintf(b, `<text x="0" y="27">%s</text>`+"\n", text)
	plotWidth := float64(panelWidth - marginLeft)
	x := func(at time.Duration) float64 { return marginLeft + plotWidth*at.Seconds()/max(1, s.took.Seconds()) }
	y := func(n int) float64 { return marginTop + plotHeight - float64(n)*plotHeight/float64(max(1, s.most)) }
	bottom := marginTop + plotHeight + barHeight
	for _, tick := range []int{0, s.most / 2, s.most} {
		fmt.Fprintf(b, `<path d="M%d %.0fh%.0f" stroke="#ddd"/><text x="%d" y="%.0f" text-anchor="end">%d</text>`+"\n",
			marginLeft, y(tick), plotWidth, marginLeft-4, y(tick)+3, tick)
	}
	for _, m := range r.marks {
		fmt.Fprintf(b, `<path d="M%.0f %dV%d" stroke="%s" stroke-dasharray="2 2"/>`+"\n", x(m.at), marginTop, bottom, axisColour)
	}
	for server := range r.names {
		colour := oldColour
		if server >= r.servers {
			colour = newColour
		}
		curve(b, r, colour, func(p *sample) int { return at(p.open, server) }, x, y)
	}
	for second, f := range r.bars() {
		base := float64(bottom)
		for class, colour := range [failures]string{refusedColour, resetColour, hungColour, axisColour} {
			if f[class] == 0 {
				continue
			}
			h := max(1, float64(f[class])*(barHeight-4)/float64(s.failed))
			base -= h
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x(time.Duration(second)*time.Second), base,
				max(1, plotWidth*barSeconds/s.took.Seconds()), h, colour)
		}
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="%s"/>`+"\n", marginLeft, marginTop, bottom, panelWidth, axisColour)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%d/s</text>`+"\n", marginLeft-4, bottom-barHeight+12, s.failed)
	for _, share := range []float64{0, .5, 1} {
		fmt.Fprintf(b, `<text x="%.0f" y="%d" text-anchor="middle">%.0f s</text>`+"\n", marginLeft+plotWidth*share, bottom+12, s.took.Seconds()*share)
	}
}

// at returns an element of a list, 0 beyond its end.
func at(list []int, i int) int {
	if i < len(list) {
		return list[i]
	}
	return 0
}

// curve draws a value over time, in steps of at least four pixels, without the time before and after in which it is zero.
func curve(b *strings.Builder, r *result, colour string, value func(*sample) int, x func(time.Duration) float64, y func(int) float64) {
	first, last := -1, -1
	for i := range r.series {
		if value(&r.series[i]) > 0 {
			last = i
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		return
	}
	fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-opacity=".7" d="`, colour)
	command, lastX, lastY := "M", 0, 0
	for i := max(0, first-1); i <= min(last+1, len(r.series)-1); i++ {
		p := &r.series[i]
		px, py := int(x(p.at)+.5), int(y(value(p))+.5)
		switch {
		case command == "M":
			fmt.Fprintf(b, "M%d %d", px, py)
		case px-lastX < 4 && i < last:
			continue
		default:
			fmt.Fprintf(b, "l%d %d", px-lastX, py-lastY)
		}
		command, lastX, lastY = "l", px, py
	}
	b.WriteString("\"/>\n")
}

// legend explains the colours.
func legend(b *strings.Builder, y int, mode string) {
	x := panelGap
	for _, entry := range []struct{ colour, text string }{
		{oldColour, "connections of an endpoint"}, {newColour, "of a new endpoint"},
		{refusedColour, "refused"}, {resetColour, "reset"}, {hungColour, "no answer"},
	} {
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", x, y-9, entry.colour, x+14, y, entry.text)
		x += 30 + 6*len(entry.text)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">mode %s; dashed: the experiment acts; failed connections per second below</text>`+"\n", x, y, html.EscapeString(mode))
}
