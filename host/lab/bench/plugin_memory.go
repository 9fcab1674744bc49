package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// memoryGuests are bundled plugins in the order in which they are loaded, with settings of those that need some.
var memoryGuests = []struct{ name, settings string }{
	{name: "locality"}, {name: "lifecycle"}, {name: "outlier"}, {name: "capacity"}, {name: "least-loaded"}, {name: "rebalance"}, {name: "maglev"},
	{name: "subset"}, {name: "canary", settings: `{"groups": [{"value": "canary", "percent": 5}]}`},
}

// printPluginMemory prints the memory of this process and of its plugins' processes with 1, 2, 5 and 10 plugins, each with its
// code and an instance that has decided for each sample request, and what it takes to load them.
func (o *options) printPluginMemory(ctx context.Context, w io.Writer) error {
	cache, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	with := o.modules.options()
	with.CacheDir, with.Memory = cache, 1<<30
	host, err := wasm.New(ctx, with)
	if err != nil {
		return err
	}
	defer host.Close(ctx)
	load := func(i int) (*wasm.Plugin, error) {
		g := memoryGuests[i]
		module, err := o.modules.read(g.name)
		if err != nil {
			return nil, err
		}
		p, err := host.Load(ctx, g.name, module, []byte(g.settings))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
		return p, nil
	}
	for i := range memoryGuests { // to fill the cache
		p, err := load(i)
		if err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\n**Memory of plugins**, MiB more than without: bundled plugins, each with its code and an instance that has decided, loaded from the cache one "+
		"after the other; pages that several processes share are divided among them\n\n"+
		"| plugins | sluice and the plugins' processes | of it, not of files | counted by `pluginLimits.memoryMiB` | start, with all self-tests, ms | CPU time of it, ms |\n"+
		"|---|---|---|---|---|---|\n")
	before, beforeAnonymous := inUse()
	took, cpu := time.Duration(0), time.Duration(0)
	for i, g := range memoryGuests {
		begin, used := time.Now(), cpuSeconds()
		p, err := load(i)
		if err != nil {
			return err
		}
		defer p.Close()
		took += time.Since(begin)
		cpu += time.Duration((cpuSeconds()-used)*1e9) + p.ProcessCPU()
		for _, sample := range wasm.Samples() { // so that the code that decisions need is resident
			var resp abi.Response
			resp.Reset(len(sample.Request.Endpoints))
			sample.Request.Settings.Text = g.settings
			if err := p.Decide(sample.Request, &resp); err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
		}
		if n := i + 1; n == 1 || n == 2 || n == 5 || n == 10 {
			counted, _ := host.MemoryInUse()
			all, anonymous := inUse()
			fmt.Fprintf(w, "| %d | %.1f | %.1f | %.1f | %d | %d |\n", n, all-before, anonymous-beforeAnonymous, float64(counted)/(1<<20), took.Milliseconds(), cpu.Milliseconds())
		}
	}
	return nil
}

// inUse returns the memory in MiB of this process and its children, and the part that is not of files, after returning what is
// unused.
func inUse() (all, anonymous float64) {
	debug.FreeOSMemory()
	for _, p := range append(self().Children(), self()) {
		all, anonymous = all+p.ProportionalRSS(), anonymous+p.AnonymousRSS()
	}
	return all, anonymous
}
