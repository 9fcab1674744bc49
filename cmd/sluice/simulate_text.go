package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/whatif/report"
	"github.com/sluice-proxy/sluice/host/whatif/simulation"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// Bounds of the text; JSON has everything.
const (
	maxTextSamples  = 20
	maxTextServices = 10
)

// printSimulation prints a result: the verdict first.
func printSimulation(out io.Writer, r *simulation.Result) {
	r = printable.Strings(r)
	t := r.Table()
	printSentences(out, report.Verdict(r), t.Failures())
	fmt.Fprintf(out, "\n%d nodes, %d Services, %d endpoints; demand: %s; capacity: %s; seed %d\n", r.Nodes, r.Services, r.Endpoints, r.Demand, r.Capacity, r.Seed)
	printMetrics(out, t)
	if len(r.Runs[0].Series) > 1 {
		printEvents(out, r)
		for i := range r.Runs {
			printSeries(out, r, &r.Runs[i])
		}
	}
	for i := range r.Runs {
		printWorst(out, &r.Runs[i])
		printBackends(out, &r.Runs[i])
	}
	printComparison(out, t.Title(), r.Comparison)
	for i := range r.Runs {
		printPolicies(out, &r.Runs[i])
	}
	for _, note := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", note)
	}
}

func seconds(s float64) string { return time.Duration(s * float64(time.Second)).String() }

// printSentences prints a verdict.
func printSentences(out io.Writer, parts ...[]string) {
	for _, sentence := range slices.Concat(parts...) {
		fmt.Fprintln(out, sentence)
	}
}

func printMetrics(out io.Writer, t verdict.Table) {
	w := printer.NewTable(out)
	fmt.Fprint(w, "\nMETRIC")
	for i := range t.Runs {
		fmt.Fprintf(w, "\t%s", verdict.Label(t.Runs[i].Config))
	}
	if t.Changes != nil {
		fmt.Fprint(w, "\tCHANGE")
	}
	fmt.Fprintln(w)
	for i, m := range t.Metrics[0] {
		fmt.Fprint(w, m.Name)
		for _, metrics := range t.Metrics {
			fmt.Fprintf(w, "\t%s", metrics[i])
		}
		if i < len(t.Changes) {
			fmt.Fprintf(w, "\t%s", cmp.Or(t.Changes[i].Change, "-"))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

func printEvents(out io.Writer, r *simulation.Result) {
	fmt.Fprintf(out, "\nTimeline %s\n", r.Timeline)
	for i, e := range r.Events {
		if i == maxTextSamples {
			fmt.Fprintf(out, "  and %d more events\n", len(r.Events)-i)
			break
		}
		fmt.Fprintf(out, "  %-8s %s\n", seconds(e.Seconds), e.Text)
	}
}

// printSeries prints samples that are evenly spread; what is counted is since the line above, and of maxima the largest since
// then.
func printSeries(out io.Writer, r *simulation.Result, run *simulation.Run) {
	fmt.Fprintf(out, "\nWith %s over time (connections/s; largest overload, most pools and sums since the line above)\n", verdict.Label(run.Config))
	w := printer.NewTable(out)
	fmt.Fprint(w, "TIME\tDEMAND")
	for _, zone := range r.Zones {
		if zone == "" {
			zone = "no zone"
		}
		fmt.Fprintf(w, "\tTO %s", zone)
	}
	fmt.Fprintln(w, "\tCROSS-ZONE\tFAILED\tOVERLOAD\tEMPTY\tSINGLE\tCHANGES\tCALLS")
	n := len(run.Series)
	lines := min(n, maxTextSamples)
	next := 0
	for line := range lines {
		last := line * (n - 1) / max(1, lines-1)
		sum := run.Series[last]
		for ; next < last; next++ {
			s := &run.Series[next]
			sum.MaxOverload, sum.EmptyPools, sum.SingleEndpointPools = max(sum.MaxOverload, s.MaxOverload), max(sum.EmptyPools, s.EmptyPools), max(sum.SingleEndpointPools, s.SingleEndpointPools)
			sum.WeightChanges += s.WeightChanges
			sum.PluginCalls += s.PluginCalls
		}
		next = last + 1
		fmt.Fprintf(w, "%s\t%.1f", seconds(sum.Seconds), sum.Demand)
		for _, load := range sum.ZoneLoad {
			fmt.Fprintf(w, "\t%.1f", load)
		}
		fmt.Fprintf(w, "\t%.1f %%\t%.1f %%\t%.2f\t%d\t%d\t%d\t%d\n", 100*sum.CrossZoneShare, 100*sum.FailedShare, sum.MaxOverload, sum.EmptyPools,
			sum.SingleEndpointPools, sum.WeightChanges, sum.PluginCalls)
	}
	w.Flush()
}

func printWorst(out io.Writer, run *simulation.Run) {
	if len(run.Services) == 0 {
		return
	}
	fmt.Fprintf(out, "\nWith %s, Services with the largest overload\n", verdict.Label(run.Config))
	w := printer.NewTable(out)
	fmt.Fprintln(w, "SERVICE\tPOLICY\tMAX OVERLOAD\tAT\tP99\tMEAN\tCROSS-ZONE\tFAILED\tCHANGES\tCALLS")
	for i := range run.Services[:min(len(run.Services), maxTextServices)] {
		s := &run.Services[i]
		policy := s.Policy
		if policy == "" {
			policy = "-"
		}
		fmt.Fprintf(w, "%s:%s\t%s\t%.2f\t%s\t%.2f\t%.2f\t%.1f %%\t%.1f %%\t%d\t%d\n", s.Service, s.Port, policy, s.MaxOverload, seconds(s.MaxAtSeconds),
			s.P99Overload, s.MeanOverload, 100*s.CrossZoneShare, 100*s.FailedShare, s.WeightChanges, s.PluginCalls)
	}
	w.Flush()
}

// printBackends prints how routes split connections, at the beginning and when that changes.
func printBackends(out io.Writer, run *simulation.Run) {
	w := printer.NewTable(out)
	defer w.Flush()
	lines := 0
	for i := range run.Services {
		s := &run.Services[i]
		for j := range s.Backends {
			if lines++; lines == 1 {
				fmt.Fprintf(out, "\nWith %s, shares of the backends of routes\n", verdict.Label(run.Config))
				fmt.Fprintln(w, "SERVICE\tROUTE\tBACKEND\tSHARE")
			}
			if lines > maxTextSamples {
				return
			}
			fmt.Fprintf(w, "%s:%s\t%s\t%s\t%s\n", s.Service, s.Port, s.Route, s.Backends[j].Label(), sharesOverTime(run, s.Backends[j].Shares))
		}
	}
}

// sharesOverTime returns the first of the shares, and with their times those that are others.
func sharesOverTime(run *simulation.Run, shares []float64) (text string) {
	last, changes := "", 0
	for i, share := range shares {
		now := verdict.Percent(share)
		switch {
		case now == last:
			continue
		case i == 0:
			text = now
		case changes == maxTextServices:
			return text + ", …"
		default:
			changes++
			text += fmt.Sprintf(", from %s on %s", seconds(run.Series[i].Seconds), now)
		}
		last = now
	}
	return text
}

func printComparison(out io.Writer, title string, c *simulation.Comparison) {
	if c == nil || len(c.Services) == 0 {
		return
	}
	fmt.Fprintf(out, "\nServices that differ most, %s\n", title)
	w := printer.NewTable(out)
	fmt.Fprintln(w, "SERVICE\tGO ELSEWHERE\tMAX OVERLOAD (BASELINE)\tCROSS-ZONE (BASELINE)\tFAILED (BASELINE)")
	for i := range c.Services[:min(len(c.Services), maxTextServices)] {
		s := &c.Services[i]
		fmt.Fprintf(w, "%s:%s\t%.1f %%\t%.2f (%.2f)\t%.1f %% (%.1f %%)\t%.1f %% (%.1f %%)\n", s.Service, s.Port, 100*s.Divergence, s.MaxOverload.Candidate, s.MaxOverload.Baseline,
			100*s.CrossZoneShare.Candidate, 100*s.CrossZoneShare.Baseline, 100*s.FailedShare.Candidate, 100*s.FailedShare.Baseline)
	}
	w.Flush()
}

func printPolicies(out io.Writer, run *simulation.Run) {
	fmt.Fprintf(out, "\nPolicies of the %s, %s\n", run.Name, verdict.Label(run.Config))
	for _, p := range run.Policies {
		if p.Name == "" {
			fmt.Fprintf(out, "  default rules: %d Services\n", p.Services)
			continue
		}
		fmt.Fprintf(out, "  policy %s: %d Services, revision %s", p.Name, p.Services, p.Revision)
		if p.PerNode {
			fmt.Fprint(out, "; its decisions depend on the node itself, so each node was computed")
		}
		fmt.Fprintln(out)
	}
	for _, p := range run.Plugins {
		fmt.Fprintf(out, "  plugin %s: %s\n", p.Name, p.Digest)
	}
}
