package peer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// results of a run.
type results struct {
	Machine   string
	Versions  []string
	Other     string // the name of the proxy beside sluice
	Endpoints int
	MinSync   time.Duration
	Quick     bool
	Rows      []sizeResult
}

// sizeResult has the results at one size.
type sizeResult struct {
	Services                 int
	AckLatency, WatchLatency []float64      // ms: lower bounds for every proxy
	Proxies                  [2]proxyResult // the other one and sluice
}

func median(v []float64) float64 { return stats.Summarize(slices.Clone(v)).Median }
func maxOf(v []float64) float64  { return stats.Summarize(slices.Clone(v)).Max }

// formatNumber formats a number with three significant digits.
func formatNumber(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// formatRatio returns "a / b = ratio ×", without the ratio if a value is missing.
func formatRatio(a, b float64) string {
	if a == 0 || b == 0 {
		return formatNumber(a) + " / " + formatNumber(b)
	}
	return fmt.Sprintf("%s / %s = **%s×**", formatNumber(a), formatNumber(b), formatNumber(a/b))
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Machine: %s. %s.\n", r.Machine, strings.Join(r.Versions, "; "))
	if r.Quick {
		fmt.Fprint(w, "Quick run: a smoke test, not a measurement.\n")
	}
	fmt.Fprintf(w, "\n**%s / sluice = ratio**\n\n", r.Other)
	line := func(name string, cell func(*sizeResult) string) {
		fmt.Fprintf(w, "| %s |", name)
		for i := range r.Rows {
			fmt.Fprintf(w, " %s |", cell(&r.Rows[i]))
		}
		fmt.Fprintln(w)
	}
	line("Services × endpoints", func(s *sizeResult) string { return fmt.Sprintf("%d × %d", s.Services, r.Endpoints) })
	fmt.Fprintln(w, "|---|"+strings.Repeat("---|", len(r.Rows)))
	both := func(name string, of func(*proxyResult) float64) {
		line(name, func(r *sizeResult) string { return formatRatio(of(&r.Proxies[0]), of(&r.Proxies[1])) })
	}
	both("process start → first connection through the last Service, s", func(c *proxyResult) float64 { return median(c.Start) })
	both(fmt.Sprintf("… through each of %d Services spread over the list, s", probedServices), func(c *proxyResult) float64 { return median(c.StartAll) })
	both("restart, rules in the kernel: process start → connections follow a change that was made meanwhile, s", func(c *proxyResult) float64 { return median(c.Restart) })
	both("API write → first connection to the new endpoint, ms: median", func(c *proxyResult) float64 { return median(c.Changes) })
	both("… p99", func(c *proxyResult) float64 { return stats.Summarize(slices.Clone(c.Changes)).P99 })
	both("… maximum", func(c *proxyResult) float64 { return maxOf(c.Changes) })
	both("… after the event of the same write on a plain watch, ms: median", func(c *proxyResult) float64 { return median(c.AfterEvent) })
	both("… p99", func(c *proxyResult) float64 { return stats.Summarize(slices.Clone(c.AfterEvent)).P99 })
	line("changes measured", func(r *sizeResult) string {
		return fmt.Sprint(len(r.Proxies[0].Changes), ", ", len(r.Proxies[1].Changes))
	})
	both("CPU for the start, including child processes, s", func(c *proxyResult) float64 { return median(c.StartCPU) })
	both("CPU per change, including child processes, ms", func(c *proxyResult) float64 { return median(c.ChangeCPU) })
	both("resident after start, MiB", func(c *proxyResult) float64 { return median(c.RSS) })
	both("peak resident, MiB", func(c *proxyResult) float64 { return maxOf(c.PeakRSS) })
	line("peak resident of a child process, MiB", func(r *sizeResult) string {
		return formatNumber(maxOf(r.Proxies[0].ChildPeakRSS)) + " / " + formatNumber(maxOf(r.Proxies[1].ChildPeakRSS))
	})
	both("received from the API server at start, MiB", func(c *proxyResult) float64 { return median(c.StartMiB) })
	line("watches at the API server", func(r *sizeResult) string {
		return fmt.Sprint(sum(r.Proxies[0].Watches), " / ", sum(r.Proxies[1].Watches))
	})
	line("lower bound: API write → acknowledgement, ms: median, p99", func(r *sizeResult) string { return medianAndP99(r.AckLatency) })
	line("lower bound: API write → event on a plain watch, ms: median, p99", func(r *sizeResult) string { return medianAndP99(r.WatchLatency) })
	if n := len(r.Rows); n > 0 {
		r.Rows[n-1].printTimeline(w)
	}
}

func sum(watches map[string]int) (n int) {
	for _, more := range watches {
		n += more
	}
	return n
}

func medianAndP99(v []float64) string {
	s := stats.Summarize(slices.Clone(v))
	return formatNumber(s.Median) + ", " + formatNumber(s.P99)
}
