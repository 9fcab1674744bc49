package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/whatif/simulation"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

//go:embed *.html.tmpl
var markup embed.FS

//go:embed report.css
var style string

//go:embed report.js
var script string

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"ratio": ratio, "percent": verdict.Percent, "label": func(file string) string { return printable.Escape(verdict.Label(file)) }, "seconds": seconds, "text": printable.Escape, "rate": rate, "time": timeText, "add": func(a, b int) int { return a + b },
}).ParseFS(markup, "*.html.tmpl"))

// maxDetails is the number of Services of a run with charts of their endpoints.
const maxDetails = 10

// Origin says how a report came about.
type Origin struct {
	Version string // of sluice
	Command string // that repeats it
}

// page is what all pages have.
type page struct {
	Origin
	Title   string
	Verdict []string
	Numbers verdict.Table
	Rows    []metricRow
	Charts  []*chart
	Limits  []string
	Style   template.CSS
	Script  template.JS
	Policy  string // content security policy
}

func newPage(t verdict.Table, sentences, notes []string, o Origin) page {
	sum := sha256.Sum256([]byte(script))
	return page{
		Origin: o, Title: printable.Escape(t.Title()), Verdict: append(sentences, t.Failures()...), Numbers: t, Rows: metricRows(t), Limits: notes, Style: template.CSS(style), Script: template.JS(script), //nolint:gosec // both are embedded
		Policy: "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'",
	}
}

// simulationView is what the template of a simulation shows.
type simulationView struct {
	page
	*simulation.Result
	Runs []runView
}

// metricRow is a number of the summary, of one or two runs.
type metricRow struct {
	Name   string
	Values []string
	Change string // "better", "worse" or ""
}

// runView is a run with the charts of its Services.
type runView struct {
	*simulation.Run
	Details []detail
}

// detail is a Service port with pictures.
type detail struct {
	*simulation.ServiceResult
	Chart  *chart
	Split  *chart // shares of the backends of its route; nil: none
	Matrix bool   // its ZoneMatrix says something
}

// Simulation writes a page with everything in it: styles, and a small script that draws charts, sorts and filters tables. Errors
// are those of w.
func Simulation(w io.Writer, r *simulation.Result, o Origin) error {
	v := simulationView{page: newPage(r.Table(), Verdict(r), r.Notes, o), Result: r}
	v.Charts = append(askedCharts(r), overviewCharts(r, v.Numbers.Title())...)
	for i := range r.Runs {
		v.Runs = append(v.Runs, newRunView(r, &r.Runs[i]))
	}
	return templates.ExecuteTemplate(w, "simulation.html.tmpl", &v)
}

// metricRows are the metrics of each run, and how they changed.
func metricRows(t verdict.Table) (rows []metricRow) {
	for i, metrics := range t.Metrics {
		for j, m := range metrics {
			if i == 0 {
				rows = append(rows, metricRow{Name: strings.ReplaceAll(m.Name, "_", " ")})
			}
			rows[j].Values = append(rows[j].Values, m.String())
		}
	}
	for i := range t.Changes {
		rows[i].Change = t.Changes[i].Change
	}
	return rows
}

// rate formats connections per second.
func rate(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// maxAskedCharts bounds the Service ports that are asked about and have charts of their own.
const maxAskedCharts = 4

// askedCharts are the pictures of the Services that are asked about: the load of their endpoints in each run.
func askedCharts(r *simulation.Result) (charts []*chart) {
	if len(r.Runs) == 0 || len(r.Runs[0].Series) == 0 {
		return nil
	}
	shown := 0
	for i := range r.Runs[0].Services {
		s := &r.Runs[0].Services[i]
		if !slices.Contains(r.Asked, s.Service) {
			continue
		}
		if shown++; shown > maxAskedCharts {
			break
		}
		for j := range r.Runs {
			of := slices.IndexFunc(r.Runs[j].Services, func(o simulation.ServiceResult) bool {
				return o.ServicePort == s.ServicePort
			})
			if of >= 0 {
				s := &r.Runs[j].Services[of]
				if c := splitChart(r, &r.Runs[j], s); c != nil {
					charts = append(charts, c)
				}
				charts = append(charts, endpointChart(r, &r.Runs[j], s))
			}
		}
	}
	return charts
}

// overviewCharts are the pictures of the whole cluster.
func overviewCharts(r *simulation.Result, title string) (charts []*chart) {
	if len(r.Runs) == 0 || len(r.Runs[0].Series) == 0 {
		return nil
	}
	zones := zoneNames(r.Zones)
	if len(r.Runs[0].Series) == 1 {
		c := &chart{Title: "Load of each zone", Unit: "connections/s", Bars: zones, Lines: []line{{"demand of its nodes", r.Runs[0].Series[0].ZoneDemand}}}
		for i := range r.Runs {
			c.Lines = append(c.Lines, line{"load of its endpoints, " + verdict.Label(r.Runs[i].Config), r.Runs[i].Series[0].ZoneLoad})
		}
		return []*chart{c}
	}
	at, events := times(r), eventTimes(r)
	overTime := func(title, unit string, mark float64, value func(*simulation.Sample) float64) {
		c := &chart{Title: title, Unit: unit, At: at, Mark: mark, Events: events}
		for i := range r.Runs {
			l := line{Name: verdict.Label(r.Runs[i].Config)}
			for j := range r.Runs[i].Series {
				l.Values = append(l.Values, value(&r.Runs[i].Series[j]))
			}
			c.Lines = append(c.Lines, l)
		}
		charts = append(charts, c)
	}
	for i := range r.Runs {
		c := &chart{Title: "Load of each zone, " + verdict.Label(r.Runs[i].Config), Unit: "connections/s", At: at, Events: events}
		for z, name := range zones {
			l := line{Name: name}
			for j := range r.Runs[i].Series {
				l.Values = append(l.Values, r.Runs[i].Series[j].ZoneLoad[z])
			}
			if r.Zones[z] != "" || slices.ContainsFunc(l.Values, func(v float64) bool { return v > 0 }) {
				c.Lines = append(c.Lines, l)
			}
		}
		charts = append(charts, c)
	}
	overTime("Largest overload of an endpoint", "× fair share", 1, func(s *simulation.Sample) float64 { return s.MaxOverload })
	overTime("Connections across zones", "%", 0, func(s *simulation.Sample) float64 { return 100 * s.CrossZoneShare })
	overTime("Failed connections", "%", 0, func(s *simulation.Sample) float64 { return 100 * s.FailedShare })
	overTime("Empty pools", "pools of all nodes", 0, func(s *simulation.Sample) float64 { return float64(s.EmptyPools) })
	if r.Comparison != nil {
		c := &chart{Title: "Connections that go to another endpoint", Unit: "%", At: at, Events: events, Lines: []line{{Name: title}}}
		for _, v := range r.Comparison.Series {
			c.Lines[0].Values = append(c.Lines[0].Values, 100*v)
		}
		charts = append(charts, c)
	}
	return slices.DeleteFunc(charts, func(c *chart) bool { return c.empty() })
}

// empty reports whether a chart has nothing but zeros.
func (c *chart) empty() bool {
	for _, l := range c.Lines {
		if slices.ContainsFunc(l.Values, func(v float64) bool { return v != 0 }) {
			return false
		}
	}
	return true
}

func newRunView(r *simulation.Result, run *simulation.Run) runView {
	v := runView{Run: run}
	for i := range min(len(run.Services), maxDetails) {
		s := &run.Services[i]
		v.Details = append(v.Details, detail{ServiceResult: s, Chart: endpointChart(r, run, s), Split: splitChart(r, run, s), Matrix: len(r.Zones) > 1 && len(s.ZoneMatrix) == len(r.Zones)})
	}
	return v
}

// endpointChart shows the load of a Service's most overloaded endpoints.
func endpointChart(r *simulation.Result, run *simulation.Run, s *simulation.ServiceResult) *chart {
	c := &chart{Title: "Load of the endpoints of " + s.Service + ":" + s.Port + ", " + verdict.Label(run.Config), Unit: "connections/s"}
	if len(run.Series) == 1 {
		l := line{Name: "load"}
		for i := range s.Endpoints {
			c.Bars, l.Values = append(c.Bars, endpointName(&s.Endpoints[i])), append(l.Values, s.Endpoints[i].Load...)
		}
		c.Lines = []line{l}
		return c
	}
	most := make([]*simulation.EndpointResult, len(s.Endpoints))
	for i := range s.Endpoints {
		most[i] = &s.Endpoints[i]
	}
	slices.SortStableFunc(most, func(a, b *simulation.EndpointResult) int {
		x, y := slices.Max(append(a.Overload, 0)), slices.Max(append(b.Overload, 0))
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	c.At, c.Events = times(r), eventTimes(r)
	for _, e := range most[:min(len(most), maxLines)] {
		c.Lines = append(c.Lines, line{endpointName(e), e.Load})
	}
	return c
}

// splitChart shows how the route of a Service port splits its connections; nil: it has none.
func splitChart(r *simulation.Result, run *simulation.Run, s *simulation.ServiceResult) *chart {
	if len(s.Backends) == 0 {
		return nil
	}
	c := &chart{Title: "Shares of the backends of " + s.Route + ", " + verdict.Label(run.Config), Unit: "%"}
	bars := line{Name: "share"}
	for i := range s.Backends {
		b := &s.Backends[i]
		l := line{Name: b.Label()}
		for _, share := range b.Shares {
			l.Values = append(l.Values, 100*share)
		}
		c.Lines, c.Bars, bars.Values = append(c.Lines, l), append(c.Bars, l.Name), append(bars.Values, l.Values...)
	}
	if len(run.Series) == 1 {
		c.Lines = []line{bars}
	} else {
		c.Bars, c.At, c.Events = nil, times(r), eventTimes(r)
	}
	return c
}

func endpointName(e *simulation.EndpointResult) string {
	name := e.Pod
	if name == "" {
		name = e.Address
	}
	if e.Zone != "" {
		name += " (" + e.Zone + ")"
	}
	return name
}

func zoneNames(zones []string) []string {
	out := slices.Clone(zones)
	for i := range out {
		if out[i] == "" {
			out[i] = "no zone"
		}
	}
	return out
}

func times(r *simulation.Result) (at []float64) {
	for i := range r.Runs[0].Series {
		at = append(at, r.Runs[0].Series[i].Seconds)
	}
	return at
}

// eventTimes are the times of the timeline's statements, at most 40: more would hide the lines.
func eventTimes(r *simulation.Result) (at []float64) {
	for _, e := range r.Events {
		if e.Line > 0 && len(at) < 40 {
			at = append(at, e.Seconds)
		}
	}
	return slices.Compact(at)
}
