package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// togetherSizes are the numbers of calls that are made together, as far as the process of a plugin is concerned.
var togetherSizes = []int{1, 16, 64}

const togetherEndpoints = 10

// togetherCost is the CPU time of a call of one guest, of sluice and of the plugin's process together, in µs: medians.
type togetherCost struct {
	guest        guest
	here, beside []float64 // in the process of the caller, and in one of the plugin, by togetherSizes
}

// togetherCosts measures the ways in turn.
func togetherCosts(ctx context.Context, m modules) (all []togetherCost, err error) {
	for _, g := range guests {
		g.leaving = false
		beside, done, err := modules{dir: m.dir}.load(ctx, g.module)
		if errors.Is(err, fs.ErrNotExist) && g.missing != "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer done()
		here, done, err := modules{dir: m.dir, here: true}.load(ctx, g.module)
		if err != nil {
			return nil, err
		}
		defer done()
		const rounds, warm, calls = 30, 5, 1920
		ways := [2][][]float64{make([][]float64, len(togetherSizes)), make([][]float64, len(togetherSizes))}
		for round := range rounds {
			for i, n := range togetherSizes {
				for way, p := range []*wasm.Plugin{here, beside} {
					us, err := cpuOfCalls(p, n, calls)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", g.name, err)
					}
					if round >= warm {
						ways[way][i] = append(ways[way][i], us)
					}
				}
			}
		}
		c := togetherCost{guest: g}
		for i := range togetherSizes {
			c.here, c.beside = append(c.here, median(ways[0][i])), append(c.beside, median(ways[1][i]))
		}
		all = append(all, c)
	}
	return all, nil
}

// cpuOfCalls returns the CPU time of a call, if n are made together.
func cpuOfCalls(p *wasm.Plugin, n, count int) (us float64, err error) {
	calls := make([]*policy.Call, n)
	for i := range calls {
		calls[i] = &policy.Call{Request: *request(togetherEndpoints, false)}
		calls[i].Request.Service = fmt.Sprint("svc", i)
		calls[i].Response.Reset(togetherEndpoints)
	}
	process, own := p.ProcessCPU().Seconds(), cpuSeconds()
	for done := 0; done < count; {
		p.DecideAll(calls)
		for _, c := range calls {
			switch {
			case c.Err == nil:
				done++
			case !errors.Is(c.Err, policy.ErrUnasked):
				return 0, c.Err
			}
		}
	}
	return (cpuSeconds() - own + p.ProcessCPU().Seconds() - process) * 1e6 / float64(count), nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func printTogether(w io.Writer, all []togetherCost) {
	fmt.Fprintf(w, "\n**Plugin calls together**, %d endpoints, CPU µs of a call: in the process of the caller → of sluice and the plugin's process\n\n| |", togetherEndpoints)
	for _, n := range togetherSizes {
		fmt.Fprintf(w, " %d a message |", n)
	}
	fmt.Fprint(w, "\n|---|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(w, "| %s |", c.guest.name)
		for i := range togetherSizes {
			fmt.Fprintf(w, " %.1f → %.1f |", c.here[i], c.beside[i])
		}
		fmt.Fprintln(w)
	}
}
