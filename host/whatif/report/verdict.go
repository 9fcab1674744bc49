package report

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/whatif/simulation"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// Verdict is a simulation in a few sentences, the most important one first.
func Verdict(r *simulation.Result) []string {
	if len(r.Runs) < 2 {
		return verdictOfOne(r)
	}
	first := fmt.Sprintf("%s sends %s of the new connections to other endpoints than %s.",
		verdict.Label(r.Runs[0].Config), verdict.Percent(r.Comparison.Divergence), verdict.Label(r.Runs[1].Config))
	return append([]string{first}, verdict.Sentences(r.Comparison.Metrics)...)
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
	out = append(out, fmt.Sprintf("%s of the connections cross zones, %s fail.", verdict.Percent(s.CrossZoneShare), verdict.Percent(s.FailedShare)))
	if s.EmptyPools > 0 {
		out = append(out, fmt.Sprintf("Up to %d pools have endpoints, but none that gets connections.", s.EmptyPools))
	}
	if s.Errors > 0 {
		out = append(out, fmt.Sprintf("The policies of %d Service ports failed; their last good or default decisions are in force.", s.Errors))
	}
	return out
}

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func seconds(v float64) string { return fmt.Sprintf("%g", v) }
