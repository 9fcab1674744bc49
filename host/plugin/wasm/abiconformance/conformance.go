// Package abiconformance proves guests against the requirements of the conformance kit, sdk/tck: for `sluice plugin check
// --conformance`.
package abiconformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// check is the check of one module.
type check struct {
	plugin   *wasm.Plugin
	settings string
	handles  bool // the module exports sluice_configure
	guests   []*guest
	seen     seen
}

// seen is what the answers to all requests had in common.
type seen struct {
	done                           bool
	nothing, values, bounds, codes string // the first failure
	requeue, costly, role          string
	coded                          bool // a negative code was returned
}

// Run checks a module with settings, a JSON object or "". The error is that of the host or of ctx; failures of the module are in
// the report.
func Run(ctx context.Context, host *wasm.Host, name string, module []byte, settings string) (*tck.Report, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := map[string]error{}
	c := &check{settings: settings}
	limits := wasm.DefaultLimits()
	_, info, err := meter.Rewrite(module, limits.Module)
	if err != nil {
		found[tck.Loads] = err
		return report(found, "the module is not valid"), nil
	}
	found[tck.Exports], found[tck.Imports] = wasm.CheckExports(info), wasm.CheckImports(info)
	if errors.Join(found[tck.Exports], found[tck.Imports]) != nil {
		return report(found, "the module does not load"), nil
	}
	for _, e := range info.Exports {
		c.handles = c.handles || e.Name == "sluice_configure"
	}
	p, err := host.Open(ctx, name, module, wasm.LoadOptions{})
	if err != nil {
		found[tck.Loads] = err
		return report(found, "the module does not load"), ctx.Err()
	}
	defer p.Close()
	found[tck.Loads] = nil
	c.plugin = p
	if _, err := c.open(); err != nil {
		if settings == "" && c.handles {
			err = fmt.Errorf("%w: without settings; if it needs some, pass them with --settings", err)
		}
		found[tck.Settings] = err
		return report(found, "the settings are not accepted ("+tck.Settings+")"), ctx.Err()
	}
	c.close()
	for _, probe := range probes() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found[probe.id] = probe.run(ctx, c)
		c.close()
	}
	return report(found, ""), ctx.Err()
}

func report(found map[string]error, why string) *tck.Report {
	return tck.NewReport(tck.Requirements(), found, why)
}

// close releases all instances.
func (c *check) close() {
	for _, g := range c.guests {
		g.in.Close()
	}
	c.guests = nil
}
