package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// memoryGuests are bundled plugins in the order in which they are loaded, with settings of those that need some.
var memoryGuests = []struct{ name, settings string }{
	{name: "zone-spill"}, {name: "staged-drain"}, {name: "slow-start"}, {name: "outlier"}, {name: "capacity"}, {name: "least-loaded"}, {name: "rebalance"},
	{name: "maglev"}, {name: "failover", settings: `{"groups": [{"values": ["zone-a"]}]}`}, {name: "canary", settings: `{"groups": [{"value": "canary", "percent": 5}]}`},
}

// printPluginMemory prints the memory of this process with 1, 2, 5 and 10 plugins, each with its code and an instance that has decided for each
// sample request.
func (o *options) printPluginMemory(ctx context.Context, w io.Writer) error {
	cache, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Memory: 1 << 30, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		return err
	}
	defer host.Close(ctx)
	load := func(i int) (*wasm.Plugin, error) {
		g := memoryGuests[i]
		module, err := os.ReadFile(modulePath(o.bin, g.name))
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
	process := benchutil.Process(os.Getpid())
	resident, live := inUse(process)
	anonymous := process.AnonymousRSS()
	fmt.Fprintf(w, "\n**Memory of plugins**, MiB more than without: bundled plugins, each with its code and an instance that has decided, loaded from the cache\n\n"+
		"| plugins | resident | of it, not of files | of that, Go's live heap | counted by `pluginLimits.memoryMiB` | the last one: resident | CPU time of a load, with its self-test, ms |\n|---|---|---|---|---|---|---|\n")
	before, cpu := resident, time.Duration(0)
	for i, g := range memoryGuests {
		begin, err := process.CPU()
		if err != nil {
			return err
		}
		p, err := load(i)
		if err != nil {
			return err
		}
		defer p.Close()
		end, err := process.CPU()
		if err != nil {
			return err
		}
		cpu += end - begin
		for _, sample := range wasm.Samples() { // so that the code that decisions need is resident
			var resp abi.Response
			resp.Reset(len(sample.Request.Endpoints))
			sample.Request.Settings.Text = g.settings
			if err := p.Decide(sample.Request, &resp); err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
		}
		now, heap := inUse(process)
		if n := i + 1; n == 1 || n == 2 || n == 5 || n == 10 {
			counted, _ := host.MemoryInUse()
			fmt.Fprintf(w, "| %d | %.1f | %.1f | %.1f | %.1f | %.1f | %d |\n", n, now-resident, process.AnonymousRSS()-anonymous, heap-live, float64(counted)/(1<<20), now-before, cpu.Milliseconds()/int64(n))
		}
		before = now
	}
	return nil
}

// inUse returns the resident memory of this process and Go's live heap in MiB, after returning what is unused.
func inUse(process benchutil.Process) (resident, live float64) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return process.RSS(), float64(m.HeapAlloc) / (1 << 20)
}
