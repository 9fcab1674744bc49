package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes of the figure in pixels. A panel has the new connections of each Pod in each second and, below, those that failed.
const (
	panelWidth, plotHeight, barHeight = 300, 110, 36
	marginLeft, marginTop             = 36, 34
	panelGap, rowGap                  = 14, 26
)

// Colours that can be told apart without seeing red and green.
const (
	oldColour, newColour, failedColour = "#4878a8", "#e8962e", "#b2182b"
)

// chart draws a row of panels for each group of scenarios.
func chart(rows []*row) string {
	var groups []string
	byGroup := map[string][]*row{}
	across := 1
	for _, r := range rows {
		if r.group == "" {
			continue
		}
		if byGroup[r.group] == nil {
			groups = append(groups, r.group)
		}
		byGroup[r.group] = append(byGroup[r.group], r)
		across = max(across, len(byGroup[r.group]))
	}
	height := marginTop + plotHeight + barHeight + rowGap
	width := across*(panelWidth+panelGap) + panelGap
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="10" fill="#222">
<rect width="100%%" height="100%%" fill="#fff"/>
`, width, len(groups)*height+20)
	for y, g := range groups {
		seconds, most, failed := 0, 1, 1
		for _, r := range byGroup[g] {
			seconds = max(seconds, len(r.Result.Seconds))
			for _, s := range r.Result.Seconds {
				failed = max(failed, s.Failed.Total())
				for _, n := range s.Servers {
					most = max(most, n)
				}
			}
		}
		for x, r := range byGroup[g] {
			fmt.Fprintf(&b, "<g transform=\"translate(%d %d)\">\n", panelGap+x*(panelWidth+panelGap), y*height)
			panel(&b, r, seconds, most, failed)
			b.WriteString("</g>\n")
		}
	}
	at := len(groups)*height + 10
	fmt.Fprintf(&b, `<g transform="translate(%d %d)"><rect width="10" height="10" y="-9" fill="%s"/><text x="14">new connections of a Pod in a second</text>`+
		`<rect x="220" width="10" height="10" y="-9" fill="%s"/><text x="234">of a Pod that came later</text>`+
		`<rect x="370" width="10" height="10" y="-9" fill="%s"/><text x="384">failed connections; dashed: what happens</text></g>`+"\n</svg>\n",
		panelGap, at, oldColour, newColour, failedColour)
	return b.String()
}

func panel(b *strings.Builder, r *row, seconds, most, failed int) {
	plot := float64(panelWidth - marginLeft)
	x := func(second float64) float64 { return marginLeft + plot*second/float64(max(1, seconds-1)) }
	y := func(n int) float64 { return marginTop + plotHeight - float64(n)*plotHeight/float64(most) }
	bottom := marginTop + plotHeight + barHeight
	fmt.Fprintf(b, `<text y="12" font-weight="bold">%s</text><text y="25">%s: %d of %d connections failed</text>`+"\n",
		html.EscapeString(strings.TrimPrefix(r.name, "rolling restart, ")), r.Proxy, r.Result.Failed.Total(), r.Result.Connections)
	for _, tick := range []int{0, most} {
		fmt.Fprintf(b, `<path d="M%d %.0fh%.0f" stroke="#ddd"/><text x="%d" y="%.0f" text-anchor="end">%d</text>`+"\n", marginLeft, y(tick), plot, marginLeft-4, y(tick)+3, tick)
	}
	fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="#999" stroke-dasharray="2 2"/>`+"\n", x(r.Acted.Seconds()), marginTop, bottom)
	old := r.old()
	var names []string
	for name := range r.Result.Servers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		colour := newColour
		if old[name] {
			colour = oldColour
		}
		fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-opacity=".7" d="`, colour)
		command := "M"
		for i := range max(0, len(r.Result.Seconds)-1) { // the last one is not a whole second
			n := r.Result.Seconds[i].Servers[name]
			if n == 0 && !near(r, i, name) {
				continue
			}
			fmt.Fprintf(b, "%s%.0f %.0f", command, x(float64(i)), y(n))
			command = "L"
		}
		b.WriteString("\"/>\n")
	}
	for i, s := range r.Result.Seconds {
		if n := s.Failed.Total(); n > 0 {
			h := max(1, float64(n)*(barHeight-6)/float64(failed))
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x(float64(i)), float64(bottom)-h, max(1, plot/float64(max(1, seconds))), h, failedColour)
		}
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="#999"/><text x="%d" y="%d" text-anchor="end">%d/s</text>`+"\n", marginLeft, marginTop, bottom, panelWidth,
		marginLeft-4, bottom-barHeight+14, failed)
	fmt.Fprintf(b, `<text x="%d" y="%d">0 s</text><text x="%d" y="%d" text-anchor="end">%d s</text>`+"\n", marginLeft, bottom+11, panelWidth, bottom+11, seconds)
}

// near reports whether a server has connections in the second before or after.
func near(r *row, second int, name string) bool {
	return second > 0 && r.Result.Seconds[second-1].Servers[name] > 0 || second+1 < len(r.Result.Seconds) && r.Result.Seconds[second+1].Servers[name] > 0
}
