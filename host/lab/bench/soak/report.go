package soak

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// Bounds on the change from the first to the last third of the samples with hostile plugins and tenants.
const (
	rssGrowth        = 1.10 // factor, plus rssNoise
	rssNoise         = 8.0  // MiB
	descriptorGrowth = 4
	goroutineGrowth  = 8
	updateGrowth     = 1.5 // factor, plus updateNoise
	updateNoise      = 5.0 // ms
	minSamples       = 9
	// updateDelay is how much longer than without hostile plugins and tenants the p99 of an update may be, in ms.
	updateDelay = 5.0
)

const header = "    time  hostile  RSS MiB    fd  goroutines  CPUs  update ms: median   p99    max  connections  failed  livez  plugin failures"

func (s sample) String() string {
	return fmt.Sprintf("%7.0fs  %-7t  %7.1f  %4d  %10d  %4.2f  %17.1f  %6.1f  %6.1f  %10d  %6d  %5d  %15d", s.at.Seconds(), s.hostile, s.rss, s.descriptors,
		s.goroutines, s.processors, s.update.Median, s.update.P99, s.update.Max, s.connections, s.failed, s.livez, s.pluginFailures)
}

// report writes a summary of the samples and returns an error for each bound that is exceeded.
func report(w io.Writer, samples []sample) error {
	var calm, hostile []sample
	for _, s := range samples {
		if s.hostile {
			hostile = append(hostile, s)
		} else {
			calm = append(calm, s)
		}
	}
	if len(hostile) < minSamples {
		return fmt.Errorf("only %d samples with hostile plugins and tenants: at least %d are needed", len(hostile), minSamples)
	}
	p99 := func(s sample) float64 { return s.update.P99 }
	third := len(hostile) / 3
	first, last := hostile[:third], hostile[len(hostile)-third:]
	var problems []error
	check := func(what string, value func(sample) float64, limit func(first float64) float64) {
		before, a, b := median(calm, value), median(first, value), median(last, value)
		verdict := "flat"
		if b > limit(a) {
			verdict = "GROWS"
			problems = append(problems, fmt.Errorf("%s grew from %.1f to %.1f, the limit is %.1f", what, a, b, limit(a)))
		}
		fmt.Fprintf(w, "%-24s  %8.1f  %8.1f  %8.1f  %s\n", what, before, a, b, verdict)
	}
	fmt.Fprintf(w, "\n%-24s  %8s  %8s  %8s\n", "medians of samples", "calm", "first ⅓", "last ⅓")
	check("resident memory, MiB", func(s sample) float64 { return s.rss }, func(v float64) float64 { return v*rssGrowth + rssNoise })
	check("file descriptors", func(s sample) float64 { return float64(s.descriptors) }, func(v float64) float64 { return v + descriptorGrowth })
	check("goroutines", func(s sample) float64 { return float64(s.goroutines) }, func(v float64) float64 { return v + goroutineGrowth })
	check("update p99, ms", p99, func(v float64) float64 { return v*updateGrowth + updateNoise })
	without, with := allUpdates(calm), allUpdates(hostile)
	fmt.Fprintf(w, "all updates, ms: %d calm: median %.1f, p99 %.1f; %d beside hostile plugins and tenants: median %.1f, p99 %.1f\n",
		without.N, without.Median, without.P99, with.N, with.Median, with.P99)
	if with.P99 > without.P99+updateDelay {
		problems = append(problems, fmt.Errorf("update p99 is %.1f ms with hostile plugins and tenants and %.1f ms without: the limit is %.0f ms more",
			with.P99, without.P99, updateDelay))
	}
	var connections, failed int64
	unhealthy := 0
	for _, s := range samples {
		connections, failed = connections+s.connections, failed+s.failed
		if s.livez != http.StatusOK {
			unhealthy++
		}
	}
	fmt.Fprintf(w, "connections: %d, failed: %d; samples with /livez other than 200: %d of %d\n", connections, failed, unhealthy, len(samples))
	if failed > 0 {
		problems = append(problems, fmt.Errorf("%d of %d connections failed", failed, connections))
	}
	if unhealthy > 0 {
		problems = append(problems, fmt.Errorf("/livez was not 200 in %d samples", unhealthy))
	}
	return errors.Join(problems...)
}

// allUpdates summarizes the updates of all samples.
func allUpdates(samples []sample) stats.Summary {
	var all []float64
	for _, s := range samples {
		all = append(all, s.updates...)
	}
	return stats.Summarize(all)
}

// median returns the median of a value of samples, 0 without samples.
func median(samples []sample, value func(sample) float64) float64 {
	return stats.Summarize(stats.Of(samples, value)).Median
}
