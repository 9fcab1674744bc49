package main

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/stats"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// blockTime is how long a block of calls takes, and maxBlock how many calls it has at most.
const (
	blockTime = 2 * time.Millisecond
	maxBlock  = 2000
)

// benchResult is what was measured of a request.
type benchResult struct {
	Name      string          `json:"name"`
	Endpoints int             `json:"endpoints"`
	Modules   []benchCost     `json:"modules"`         // in the order of the report's
	Ratio     *stats.Interval `json:"ratio,omitempty"` // time of the first module ÷ time of the second; with its 95 % confidence interval
	// SameResponse is whether both modules respond the same.
	SameResponse *bool `json:"sameResponse,omitempty"`
}

// benchCost is what a call of a module costs.
type benchCost struct {
	Calls       int     `json:"calls"`
	Fuel        uint64  `json:"fuel"`
	P50         float64 `json:"p50Microseconds"`
	P90         float64 `json:"p90Microseconds"`
	P99         float64 `json:"p99Microseconds"`
	Max         float64 `json:"maxMicroseconds"`
	HostAllocs  float64 `json:"hostAllocations"`    // of Go's heap, per call
	HostBytes   float64 `json:"hostAllocatedBytes"` // per call
	MemoryBytes uint64  `json:"memoryBytes"`        // of the instance, after all calls
	GrownBytes  uint64  `json:"memoryGrownBytes"`   // since the first call
}

// benchTarget is a module with a request.
type benchTarget struct {
	plugin   *wasm.Plugin
	request  *abi.Request
	response abi.Response
	block    int       // calls of a block
	times    []float64 // of calls, µs
	blocks   []float64 // medians of blocks, µs
	first    uint64    // memory after the first call
	allocs   uint64
	bytes    uint64
}

func newBenchTarget(p *wasm.Plugin, c benchCase) *benchTarget {
	req := *c.request
	if c.keys == nil {
		req = *wasm.SampleRequest(len(req.Endpoints), p.Keys(c.settings)...)
	}
	req.Settings.Text = c.settings
	p.Reset()
	return &benchTarget{plugin: p, request: &req}
}

func (t *benchTarget) call() (time.Duration, error) {
	t.response.Reset(len(t.request.Endpoints))
	begin := time.Now()
	err := t.plugin.Decide(t.request, &t.response)
	return time.Since(begin), err
}

// warmUp makes the instance, and determines the calls of a block.
func (t *benchTarget) warmUp() error {
	if _, err := t.call(); err != nil {
		return err
	}
	t.first = t.plugin.Stats().MemoryBytes
	least := time.Hour
	for range 20 {
		took, err := t.call()
		if err != nil {
			return err
		}
		least = min(least, took)
	}
	t.block = min(max(1, int(blockTime/max(1, least))), maxBlock)
	return nil
}

func (t *benchTarget) runBlock() error {
	var before, after runtime.MemStats
	begin := len(t.times)
	t.times = slices.Grow(t.times, t.block)
	runtime.ReadMemStats(&before)
	for range t.block {
		took, err := t.call()
		if err != nil {
			return err
		}
		t.times = append(t.times, float64(took.Nanoseconds())/1000)
	}
	runtime.ReadMemStats(&after)
	t.allocs += after.Mallocs - before.Mallocs
	t.bytes += after.TotalAlloc - before.TotalAlloc
	t.blocks = append(t.blocks, stats.Summarize(slices.Clone(t.times[begin:])).Median)
	return nil
}

func (t *benchTarget) cost() benchCost {
	calls, s := float64(len(t.times)), t.plugin.Stats()
	slices.Sort(t.times)
	q := func(q float64) float64 { return stats.Quantile(t.times, q) }
	return benchCost{
		Calls: len(t.times), Fuel: s.LastFuel, P50: q(0.5), P90: q(0.9), P99: q(0.99), Max: q(1),
		HostAllocs: float64(t.allocs) / calls, HostBytes: float64(t.bytes) / calls, MemoryBytes: s.MemoryBytes, GrownBytes: s.MemoryBytes - min(t.first, s.MemoryBytes),
	}
}

// measure measures all modules with a request: in each round a block of each, then the same in reverse.
func measure(ctx context.Context, c benchCase, targets []*benchTarget, rounds int) (*benchResult, error) {
	for _, t := range targets {
		if err := t.warmUp(); err != nil {
			return nil, err
		}
	}
	runtime.GC()
	order := slices.Clone(targets)
	for range 2 * rounds {
		for _, t := range order {
			if err := t.runBlock(); err != nil {
				return nil, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		slices.Reverse(order)
	}
	r := &benchResult{Name: c.name, Endpoints: len(c.request.Endpoints)}
	for _, t := range targets {
		r.Modules = append(r.Modules, t.cost())
	}
	if len(targets) == 2 {
		ratio := stats.Ratios(targets[1].blocks, targets[0].blocks)
		same := reflect.DeepEqual(targets[0].response, targets[1].response)
		r.Ratio, r.SameResponse = &ratio, &same
	}
	return r, nil
}

func (r *benchReport) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, m := range r.Modules {
		fmt.Fprintf(tw, "%c\t%s\trevision %s\n", 'A'+i, printable.Escape(m.File), m.Revision[:16])
	}
	fmt.Fprintf(tw, "\nREQUEST\tENDPOINTS\tMODULE\tFUEL\tP50 µs\tP90 µs\tP99 µs\tMAX µs\tALLOCS\tMEMORY KiB\t\n")
	for _, q := range r.Requests {
		for i, c := range q.Modules {
			fmt.Fprintf(tw, "%s\t%d\t%c\t%d\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%d\t", printable.Escape(q.Name), q.Endpoints, 'A'+i, c.Fuel, c.P50, c.P90, c.P99, c.Max, c.HostAllocs, c.MemoryBytes>>10)
			if c.GrownBytes > 0 {
				fmt.Fprintf(tw, "grown by %d KiB", c.GrownBytes>>10)
			}
			fmt.Fprintln(tw)
		}
	}
	if len(r.Modules) == 2 {
		fmt.Fprintf(tw, "\nREQUEST\tENDPOINTS\tTIME A ÷ B (95 %% CI)\tFUEL A ÷ B\tRESPONSES\n")
		for _, q := range r.Requests {
			verdict, responses := "", "equal"
			if q.Ratio.Low <= 1 && q.Ratio.High >= 1 {
				verdict = ", no difference beyond noise"
			}
			if !*q.SameResponse {
				responses = "differ"
			}
			fuel := float64(q.Modules[0].Fuel) / float64(max(1, q.Modules[1].Fuel))
			fmt.Fprintf(tw, "%s\t%d\t%.3f (%.3f–%.3f)%s\t%.3f\t%s\n", printable.Escape(q.Name), q.Endpoints, q.Ratio.Median, q.Ratio.Low, q.Ratio.High, verdict, fuel, responses)
		}
	}
	return tw.Flush()
}
