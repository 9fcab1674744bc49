package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// checkResult is the result of `sluice plugin check` for a plugin that 'sluice run' would load.
type checkResult struct {
	moduleInfo
	pluginInfo
	Load     loadCost       `json:"load"`
	SelfTest selfTest       `json:"selfTest"`
	Calls    []callCost     `json:"calls"`
	Warnings []string       `json:"warnings"`
	Answers  []sampleResult `json:"answers,omitempty"` // with --answers
}

// loadCost is what a plugin costs when it is loaded, and once it is.
type loadCost struct {
	MeterMicroseconds       float64 `json:"meterMicroseconds"`
	CompileMicroseconds     float64 `json:"compileMicroseconds"`
	CachedMicroseconds      float64 `json:"cachedMicroseconds,omitempty"` // with compiled code from the cache; 0: it is not cached
	InstantiateMicroseconds float64 `json:"instantiateMicroseconds"`
	InitFuel                int64   `json:"initFuel"`
	InstanceBytes           uint64  `json:"instanceBytes"` // memory after start, with tables
	UsedBytes               uint64  `json:"usedBytes"`     // memory after calls, with tables
	HostBytes               uint64  `json:"hostBytes"`     // with compiled code and tables
}

// selfTest says how a plugin was found to be deterministic.
type selfTest struct {
	Samples      int     `json:"samples"`
	Orders       int     `json:"orders"`
	Calls        int     `json:"calls"`
	Instances    int     `json:"instances"`
	Fuel         int64   `json:"fuel"`
	Microseconds float64 `json:"microseconds"`
}

// callCost is the cost of one call with a number of endpoints.
type callCost struct {
	Endpoints          int     `json:"endpoints"`
	Fuel               uint64  `json:"fuel"`
	Budget             int64   `json:"budget"` // of fuel
	MedianMicroseconds float64 `json:"medianMicroseconds"`
}

// sampleResult is the answer to a sample request.
type sampleResult struct {
	Sample              string    `json:"sample"`
	RequeueMilliseconds int64     `json:"requeueMilliseconds,omitempty"` // 0: only on a change
	Values              []float64 `json:"values"`                        // capacities or shares, by the role; 1 is that of an ordinary endpoint
	Reasons             []string  `json:"reasons"`                       // distinct
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// add adds the costs of loading: first without compiled code, then with.
func (r *checkResult) add(first, cached wasm.Report, stats wasm.Stats) {
	t := cached.SelfTest
	r.Load = loadCost{
		MeterMicroseconds: microseconds(first.Meter), CompileMicroseconds: microseconds(first.Compile), InstantiateMicroseconds: microseconds(cached.Instantiate),
		InitFuel: cached.InitFuel, InstanceBytes: first.MemoryBytes, UsedBytes: stats.MemoryBytes, HostBytes: stats.HostBytes,
	}
	if cached.FromCache {
		r.Load.CachedMicroseconds = microseconds(cached.Compile)
	}
	r.SelfTest = selfTest{t.Samples, t.Orders, t.Calls, t.Instances, t.Fuel, microseconds(t.Duration)}
}

func (r *checkResult) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := newLine(w)
	ms := func(microseconds float64) string { return fmt.Sprintf("%.2f ms", microseconds/1000) }
	line("plugin", "%s", r.File)
	r.pluginInfo.print(line)
	line("imports", "%s", r.importsText())
	line("size", "%d bytes, metered %d", r.Bytes, r.MeteredBytes)
	line("functions", "%d, the largest %d bytes", r.Functions, r.LargestFunction)
	fromCache := "not from the cache"
	if r.Load.CachedMicroseconds > 0 {
		fromCache = "from the cache " + ms(r.Load.CachedMicroseconds)
	}
	line("compile", "%s and %s for metering; %s", ms(r.Load.CompileMicroseconds), ms(r.Load.MeterMicroseconds), fromCache)
	line("instantiate", "%s, fuel %d", ms(r.Load.InstantiateMicroseconds), r.Load.InitFuel)
	line("memory", "%d KiB declared, %d KiB after start, %d KiB after calls", r.MemoryBytes>>10, r.Load.InstanceBytes>>10, r.Load.UsedBytes>>10)
	line("host memory", "%d KiB, with compiled code and tables", r.Load.HostBytes>>10)
	t := &r.SelfTest
	line("deterministic", "yes: %d sample requests in %d orders have equal answers (%d calls of %d instances, new and used; %s, fuel %d)",
		t.Samples, t.Orders, t.Calls, t.Instances, ms(t.Microseconds), t.Fuel)
	w.Flush()
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "endpoints\tfuel\tof the budget\tmedian time\t\n")
	for _, k := range r.Calls {
		fmt.Fprintf(w, "%d\t%d\t%.2f %%\t%.2f µs\t\n", k.Endpoints, k.Fuel, 100*float64(k.Fuel)/float64(k.Budget), k.MedianMicroseconds)
	}
	w.Flush()
	for _, text := range r.Warnings {
		fmt.Fprintf(out, "\nwarning: %s\n", printable.Escape(text))
	}
	if len(r.Answers) == 0 {
		return nil
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nsample request\trequeue after\t%s\treasons\n", r.values)
	for i := range r.Answers {
		a := &r.Answers[i]
		requeue := "-"
		if a.RequeueMilliseconds > 0 {
			requeue = (time.Duration(a.RequeueMilliseconds) * time.Millisecond).String()
		}
		var values []string
		for _, n := range a.Values[:min(len(a.Values), maxValues)] {
			values = append(values, api.Number(n))
		}
		if len(a.Values) > maxValues {
			values = append(values, "…")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.Sample, requeue, strings.Join(values, " "), printable.Escape(strings.Join(a.Reasons[:min(len(a.Reasons), maxReasons)], "; ")))
	}
	return w.Flush()
}

// How many values and reasons of an answer are printed as text.
const (
	maxValues  = 12
	maxReasons = 4
)

// answers returns the answers to all sample requests.
func (c *pluginCheck) answers(p *wasm.Plugin) (out []sampleResult, err error) {
	for _, s := range wasm.Samples(p.Report().Keys...) {
		s.Request.Settings.Text = string(c.settings)
		var resp abi.Response
		resp.Reset(len(s.Request.Endpoints))
		if err := p.Decide(s.Request, &resp); err != nil {
			return nil, fmt.Errorf("sample request %q: %w", s.Name, err)
		}
		a := sampleResult{Sample: s.Name, RequeueMilliseconds: resp.RequeueAfter.Milliseconds(), Values: []float64{}, Reasons: []string{}}
		for _, r := range resp.Results {
			a.Values = append(a.Values, float64(r.Value)/abi.One)
			if r.Reason != "" && !slices.Contains(a.Reasons, r.Reason) {
				a.Reasons = append(a.Reasons, r.Reason)
			}
		}
		out = append(out, a)
	}
	return out, nil
}
