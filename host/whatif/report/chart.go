package report

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

// maxLines limits the lines of a chart; more cannot be told apart.
const maxLines = 8

// chart is a picture of values over time, or, at a single time, of values by label. The page's script draws it from JSON.
type chart struct {
	Title string   `json:"title"`
	Unit  string   `json:"unit"`
	Lines []line   `json:"lines"`
	At    values   `json:"at"`   // seconds of the values; nil: bars
	Bars  []string `json:"bars"` // labels of the values
	// Mark is a line across the picture, at a value that means something; 0: none.
	Mark float64 `json:"mark"`
	// Events are the seconds of vertical lines.
	Events values `json:"events"`
	// Omitted is the number of lines beyond maxLines. JSON sets it.
	Omitted int `json:"omitted"`
}

// line is a line of a chart, or a group of bars.
type line struct {
	Name   string `json:"name"`
	Values values `json:"values"`
}

// values are written with six significant digits; a value that is not finite is null, a gap.
type values []float64

func (v values) MarshalJSON() ([]byte, error) {
	if v == nil {
		return []byte("null"), nil
	}
	out := []byte{'['}
	for i, f := range v {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, f, 'g', 6, 64)
		}
	}
	return append(out, ']'), nil
}

// JSON returns the chart as the page's script reads it. Its texts are escaped for terminals and editors.
func (c *chart) JSON() (string, error) {
	shown := *c
	shown.Title = printable.Escape(c.Title)
	shown.Lines, shown.Bars = nil, nil
	for _, l := range c.Lines[:min(len(c.Lines), maxLines)] {
		shown.Lines = append(shown.Lines, line{printable.Escape(l.Name), l.Values})
	}
	for _, b := range c.Bars {
		shown.Bars = append(shown.Bars, printable.Escape(b))
	}
	shown.Omitted = len(c.Lines) - len(shown.Lines)
	out, err := json.Marshal(&shown)
	return string(out), err
}
