package main

import (
	"fmt"
	"image/color"
	"os"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture has the measured shares of new connections while an endpoint drains.
type picture struct {
	began    time.Time
	draining string
	peers    map[string]bool // the other endpoints of its zone
	samples  []sample
}

// sample is the shares in one measurement, from 0 to 1.
type sample struct {
	from, to time.Duration // since the drain began
	shares   [3]float64    // parallel to groups
}

// groups returns the names of what the picture compares.
func (p *picture) groups() [3]string {
	return [3]string{p.draining, "each other endpoint in " + zone, "other zones together"}
}

// add adds a measurement that ended now.
func (p *picture) add(r result) {
	to := time.Since(p.began)
	s := sample{from: max(0, to-r.took), to: to}
	for server, n := range r.counts {
		share := float64(n) / float64(max(1, r.total))
		switch {
		case server == p.draining:
			s.shares[0] += share
		case p.peers[server]:
			s.shares[1] += share / float64(len(p.peers))
		default:
			s.shares[2] += share
		}
	}
	p.samples = append(p.samples, s)
}

// lines returns the picture for a terminal.
func (p *picture) lines(paint paint) []string {
	const cells = 20
	var out []string
	line := func(first string, column func(i int) string) {
		text := fmt.Sprintf("  %8s", first)
		for i := range p.groups() {
			text += "  " + column(i)
		}
		out = append(out, strings.TrimRight(text, " "))
	}
	groups := p.groups()
	line("SECONDS", func(i int) string { return fmt.Sprintf("%-*s", cells+9, truncate(groups[i], cells+9)) })
	for _, s := range p.samples {
		line(fmt.Sprintf("%.1f", s.to.Seconds()), func(i int) string {
			filled, rest := bar(s.shares[i], 0, cells)
			return fmt.Sprintf("%s%s %6.1f %%", paint.as(zoneColours[i], filled), rest, 100*s.shares[i])
		})
	}
	return out
}

// write writes the picture as an SVG file.
func (p *picture) write(file string) error {
	chart := plot.New()
	chart.Title.Text = "Share of new connections while " + p.draining + " drains"
	chart.X.Label.Text, chart.Y.Label.Text = "seconds since it began to terminate", "%"
	chart.X.Min, chart.Y.Min = 0, 0
	chart.Legend.Top, chart.Legend.Left = true, true
	chart.Legend.XOffs = 8
	for _, s := range []*draw.TextStyle{
		&chart.Title.TextStyle, &chart.X.Label.TextStyle, &chart.Y.Label.TextStyle, &chart.X.Tick.Label, &chart.Y.Tick.Label, &chart.Legend.TextStyle,
	} {
		s.Font.Variant, s.Font.Typeface, s.Font.Size = "Sans", font.Typeface("Liberation"), 11
	}
	chart.Add(plotter.NewGrid())
	// Colors that can be told apart without seeing red and green, and dashes for those who see none.
	colors := [...]color.Color{color.RGBA{0xe8, 0x96, 0x2e, 255}, color.RGBA{0x48, 0x78, 0xa8, 255}, color.RGBA{0x66, 0x66, 0x66, 255}}
	dashes := [...][]vg.Length{nil, {6, 3}, {2, 2}}
	for i, name := range p.groups() {
		var points plotter.XYs
		for _, s := range p.samples {
			points = append(points, plotter.XY{X: s.from.Seconds(), Y: 100 * s.shares[i]}, plotter.XY{X: s.to.Seconds(), Y: 100 * s.shares[i]})
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("picture: %w", err)
		}
		line.Color, line.Dashes, line.Width = colors[i], dashes[i], 2
		chart.Add(line)
		chart.Legend.Add(name, line)
	}
	chart.Y.Max *= 1.5 // room for the legend
	chart.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) (out []plot.Tick) {
		for v := low; v <= high; v += 10 {
			out = append(out, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', 0, 64)})
		}
		return out
	})
	canvas := vgsvg.New(18*vg.Centimeter, 8*vg.Centimeter)
	chart.Draw(draw.New(canvas))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("%s: %w", file, err)
	}
	return f.Close()
}
