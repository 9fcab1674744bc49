package report

import (
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/host/whatif/simulation"
)

// Verdict is a simulation in a few sentences, the most important one first.
func Verdict(r *simulation.Result) []string {
	if len(r.Runs) < 2 {
		return verdictOfOne(r)
	}
	a, b := &r.Runs[0].Summary, &r.Runs[1].Summary
	var better, worse []string
	judge := func(name string, before, after float64, format func(float64) string) {
		text := fmt.Sprintf("%s %s instead of %s", name, format(after), format(before))
		switch {
		case format(before) == format(after):
		case after < before:
			better = append(better, text)
		default:
			worse = append(worse, text)
		}
	}
	judge("largest overload", a.MaxOverload, b.MaxOverload, ratio)
	judge("connections across zones", a.CrossZoneShare, b.CrossZoneShare, percent)
	judge("failed connections", a.FailedShare, b.FailedShare, percent)
	judge("empty pools", float64(a.EmptyPools), float64(b.EmptyPools), count)
	judge("pools with a single endpoint", float64(a.SingleEndpointPools), float64(b.SingleEndpointPools), count)
	judge("failing policies", float64(a.Errors), float64(b.Errors), count)
	judge("weight changes", float64(a.WeightChanges), float64(b.WeightChanges), count)
	out := []string{fmt.Sprintf("%s sends %s of the new connections to other endpoints than %s.", r.Runs[1].Name, percent(b.Divergence), r.Runs[0].Name)}
	if len(better) > 0 {
		out = append(out, "Better: "+strings.Join(better, "; ")+".")
	}
	if len(worse) > 0 {
		out = append(out, "Worse: "+strings.Join(worse, "; ")+".")
	}
	if len(better)+len(worse) == 0 {
		out = append(out, "No number differs.")
	}
	return out
}

func verdictOfOne(r *simulation.Result) []string {
	if len(r.Runs) == 0 {
		return []string{"Nothing was computed."}
	}
	run := &r.Runs[0]
	s := &run.Summary
	out := []string{fmt.Sprintf("No endpoint gets more than %s times its fair share of new connections.", ratio(s.MaxOverload))}
	if len(run.Services) > 0 && s.MaxOverload > 1.005 {
		w := &run.Services[0]
		for i := range run.Services {
			if run.Services[i].MaxOverload > w.MaxOverload {
				w = &run.Services[i]
			}
		}
		out[0] = fmt.Sprintf("The most loaded endpoint gets %s times its fair share of new connections: one of %s, port %s, at %s s.",
			ratio(w.MaxOverload), w.Service, w.Port, seconds(w.MaxAtSeconds))
	}
	out = append(out, fmt.Sprintf("%s of the connections cross zones, %s fail.", percent(s.CrossZoneShare), percent(s.FailedShare)))
	if s.EmptyPools > 0 {
		out = append(out, fmt.Sprintf("Up to %d pools have endpoints, but none that gets connections.", s.EmptyPools))
	}
	if s.Errors > 0 {
		out = append(out, fmt.Sprintf("The policies of %d Service ports failed; their last good or default decisions are in force.", s.Errors))
	}
	return out
}

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func percent(v float64) string {
	if v > 0 && v < 0.0005 {
		return "<0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

func seconds(v float64) string { return fmt.Sprintf("%g", v) }
