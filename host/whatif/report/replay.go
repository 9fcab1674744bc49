package report

import (
	"fmt"
	"io"
	"time"

	"github.com/sluice-proxy/sluice/host/whatif/replay"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// replayView is what the template of a replay shows.
type replayView struct {
	page
	Result *replay.Result
}

// Replay writes a page about the replay of a recording, like Simulation.
func Replay(w io.Writer, r *replay.Result, o Origin) error {
	v := replayView{page: newPage(r.Table(), ReplayVerdict(r), ReplayNotes(r), o), Result: r}
	v.Charts = replayCharts(r, v.Numbers.Title())
	return templates.ExecuteTemplate(w, "replay.html.tmpl", &v)
}

// replayCharts are the pictures of how two runs differ over time.
func replayCharts(r *replay.Result, title string) []*chart {
	c := r.Comparison
	if c == nil || c.Differing == 0 {
		return nil
	}
	all := &chart{Title: "Connections that go to another endpoint, mean of all Service ports", Unit: "%"}
	ports := &chart{Title: "Service ports that differ", Unit: "at most, at one time"}
	shares, numbers := line{Name: title}, line{Name: "Service ports"}
	for i := range c.Series.Divergence {
		all.At = append(all.At, float64(i)*c.Series.StepSeconds)
		shares.Values, numbers.Values = append(shares.Values, 100*c.Series.Divergence[i]), append(numbers.Values, float64(c.Series.Differing[i]))
	}
	ports.At = all.At
	all.Lines, ports.Lines = []line{shares}, []line{numbers}
	end := r.To.Sub(r.From).Seconds()
	most := []*chart{all, ports}
	for i := range c.Services[:min(len(c.Services), maxLines/2)] {
		s := &c.Services[i]
		one := &chart{Title: "Connections to " + s.Service + ":" + s.Port + " (" + s.Family + ") that go to another endpoint, at most", Unit: "%"}
		l := line{Name: s.Service}
		step := func(at time.Time, v float64) {
			one.At, l.Values = append(one.At, at.Sub(r.From).Seconds()), append(l.Values, 100*v)
		}
		step(r.From, 0)
		for j := range s.Periods {
			p := &s.Periods[j]
			step(p.From, p.Divergence)
			step(p.To, 0)
		}
		if s.Omitted == 0 && end > one.At[len(one.At)-1] {
			step(r.To, 0)
		}
		one.Lines = []line{l}
		most = append(most, one)
	}
	return most
}

// ReplayVerdict is a replay in a few sentences, the most important one first.
func ReplayVerdict(r *replay.Result) (out []string) {
	switch c := r.Comparison; {
	case c == nil:
		s := &r.Runs[0].Summary
		out = append(out, fmt.Sprintf("The plan would have been updated %d times, with %d weight changes and %d plugin calls.", s.Updates, s.WeightChanges, s.PluginCalls))
	case c.Differing == 0:
		out = append(out, fmt.Sprintf("No difference: %s and %s send new connections to the same endpoints all the time.",
			verdict.Label(r.Runs[0].Config), verdict.Label(r.Runs[1].Config)))
	default:
		out = append(out, fmt.Sprintf("%s differs from %s for %d Service ports: up to %s of the new connections to one of them go elsewhere, %s of all in the mean.",
			verdict.Label(r.Runs[0].Config), verdict.Label(r.Runs[1].Config), c.Differing, verdict.Percent(c.MaxDivergence), verdict.Percent(c.MeanDivergence)))
		out = append(out, verdict.Sentences(c.Metrics)...)
	}
	return out
}

// ReplayNotes are what the reader of a replay has to know.
func ReplayNotes(r *replay.Result) (out []string) {
	if r.Truncated {
		out = append(out, "the recording has not been closed, or is still written: what follows is missing")
	}
	if r.Dropped > 0 {
		out = append(out, fmt.Sprintf("%d changes are missing in the recording, because it was written too late", r.Dropped))
	}
	return append(out, r.Notes...)
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }
