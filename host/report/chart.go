package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/sluice-proxy/sluice/host/printable"
)

// Size of a chart. Its page scales it to the width that there is.
const (
	chartWidth, chartHeight = 17 * vg.Centimeter, 7 * vg.Centimeter
	textSize                = vg.Length(11)
)

// maxLines limits the lines of a chart; more cannot be told apart.
const maxLines = 8

// Colors of a chart stand for CSS properties of the page, which differ between light and dark schemes: colors replaces them.
var (
	lineColors = []color.Color{
		color.RGBA{1, 0, 0, 255}, color.RGBA{2, 0, 0, 255}, color.RGBA{3, 0, 0, 255}, color.RGBA{4, 0, 0, 255},
		color.RGBA{5, 0, 0, 255}, color.RGBA{6, 0, 0, 255}, color.RGBA{7, 0, 0, 255}, color.RGBA{8, 0, 0, 255},
	}
	gridColor  = color.RGBA{0, 1, 0, 255}
	textColor  = color.RGBA{0, 2, 0, 255}
	properties = strings.NewReplacer(
		"#010000", "var(--line1)", "#020000", "var(--line2)", "#030000", "var(--line3)", "#040000", "var(--line4)",
		"#050000", "var(--line5)", "#060000", "var(--line6)", "#070000", "var(--line7)", "#080000", "var(--line8)",
		"#000100", "var(--grid)", "#000200", "var(--text)", "#000000", "var(--text)",
		"Liberation Sans", "inherit",
	)
	dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 2, 2, 2}}
)

// line is a line of a chart, or a group of bars.
type line struct {
	name   string
	values []float64
}

// chart is a picture of values over time, or, at a single time, of values by label.
type chart struct {
	title string
	unit  string
	lines []line
	at    []float64 // seconds of the values; nil: bars
	bars  []string  // labels of the values
	// mark is a line across the picture, at a value that means something; 0: none.
	mark float64
	// events are vertical lines.
	events []float64
}

// svg draws a chart with its caption. Its text can be read by screen readers, and its colors are those of the page.
func (c *chart) svg() (template.HTML, error) {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.Y.Label.Text = c.unit
	p.Y.Min, p.X.Min = 0, 0
	for _, s := range []*draw.TextStyle{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		s.Color, s.Font.Variant, s.Font.Typeface, s.Font.Size = textColor, "Sans", font.Typeface("Liberation"), textSize
	}
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color = gridColor, gridColor
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(ticks), plot.TickerFunc(ticks)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, gridColor
	p.Add(grid)
	var err error
	if c.at == nil {
		err = c.addBars(p)
	} else {
		err = c.addLines(p)
	}
	if err != nil {
		return "", fmt.Errorf("chart %s: %w", c.title, err)
	}
	if c.mark > 0 {
		at, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: c.mark}, {X: p.X.Max, Y: c.mark}})
		if err != nil {
			return "", err
		}
		at.Color, at.Dashes = textColor, []vg.Length{1, 3}
		p.Add(at)
	}
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = p.Y.Min + 1
	}
	canvas := vgsvg.New(chartWidth, chartHeight)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return "", err
	}
	return c.inline(out.String()), nil
}

var (
	svgStart   = regexp.MustCompile(`(?s)^.*?<svg [^>]*viewBox="([^"]*)"[^>]*>`)
	background = regexp.MustCompile(`<path d="[^"]*" style="fill:#(?:000000|FFFFFF);fill-opacity:0" />`)
)

// inline makes a part of a page of an SVG file.
func (c *chart) inline(file string) template.HTML {
	file = background.ReplaceAllString(file, "")
	file = svgStart.ReplaceAllString(file, `<svg role="img" viewBox="$1" aria-label="`+template.HTMLEscapeString(printable.Escape(c.title))+`">`)
	return c.caption() + template.HTML(properties.Replace(file)) //nolint:gosec // vgsvg escapes texts
}

// caption is the title of a chart and the key of its colors.
func (c *chart) caption() template.HTML {
	var b strings.Builder
	b.WriteString("<figcaption>" + template.HTMLEscapeString(printable.Escape(c.title)))
	if len(c.lines) > 1 {
		b.WriteString(`<span class="key">`)
		for i, l := range c.lines[:min(len(c.lines), maxLines)] {
			dash := dashes[i%len(dashes)]
			if c.at == nil {
				dash = nil
			}
			fmt.Fprintf(&b, `<span><svg viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4h24" style="stroke:var(--line%d);stroke-width:3;stroke-dasharray:%s"/></svg>%s</span>`,
				i+1, strings.Trim(strings.ReplaceAll(fmt.Sprint(dash), " ", ","), "[]"), template.HTMLEscapeString(printable.Escape(l.name)))
		}
		b.WriteString("</span>")
		if more := len(c.lines) - maxLines; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
	}
	b.WriteString("</figcaption>")
	return template.HTML(b.String()) //nolint:gosec // names are escaped
}

// ticks returns round numbers, at most ten.
func ticks(low, high float64) (out []plot.Tick) {
	if !(high > low) || math.IsInf(high-low, 0) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, f := range []float64{1, 2, 5} {
		if n := (high - low) / (f * step); n <= 8 {
			step *= f
			break
		}
	}
	for i := math.Ceil(low / step); i*step <= high && len(out) < 10; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: fmt.Sprintf("%.6g", i*step)})
	}
	return out
}

func (c *chart) addLines(p *plot.Plot) error {
	p.X.Label.Text = "seconds"
	for i, l := range c.lines {
		if i == maxLines {
			break
		}
		xys := make(plotter.XYs, 0, len(l.values))
		for j, v := range l.values {
			if !math.IsNaN(v) && !math.IsInf(v, 0) && j < len(c.at) {
				xys = append(xys, plotter.XY{X: c.at[j], Y: v})
			}
		}
		if len(xys) == 0 {
			continue
		}
		drawn, err := plotter.NewLine(xys)
		if err != nil {
			return err
		}
		drawn.StepStyle = plotter.PostStep
		drawn.Color, drawn.Width, drawn.Dashes = lineColors[i], 1.5, dashes[i%len(dashes)]
		p.Add(drawn)
	}
	for _, at := range c.events {
		v, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: p.Y.Max}})
		if err != nil {
			return err
		}
		v.Color, v.Width = gridColor, 0.75
		p.Add(v)
	}
	p.Y.Max *= 1.05 // room for the highest line
	return nil
}

func (c *chart) addBars(p *plot.Plot) error {
	if len(c.bars) == 0 {
		return nil
	}
	width := vg.Length(0.6) * chartWidth / vg.Length(max(1, len(c.bars)*len(c.lines)+1))
	for i, l := range c.lines {
		if i == maxLines {
			break
		}
		if len(l.values) == 0 {
			continue
		}
		drawn, err := plotter.NewBarChart(plotter.Values(l.values), width)
		if err != nil {
			return err
		}
		drawn.Color, drawn.LineStyle.Width = lineColors[i], 0
		drawn.Offset = width * (vg.Length(i) - vg.Length(len(c.lines)-1)/2)
		p.Add(drawn)
	}
	labels := make([]string, len(c.bars))
	for i, b := range c.bars {
		labels[i] = printable.Escape(b)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	if len(labels) > 8 {
		p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/4, draw.XRight, draw.YCenter
	}
	p.Y.Max *= 1.05
	return nil
}
