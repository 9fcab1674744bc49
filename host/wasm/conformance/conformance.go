// Package conformance proves guests against the requirements of the conformance kit, sdk/tck: for `sluice plugin check --conformance`.
package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/wasm"
	"github.com/sluice-proxy/sluice/host/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// Verdict is the result of a requirement.
type Verdict string

// Verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	Skip Verdict = "skip"
)

// Result is a requirement with its verdict.
type Result struct {
	tck.Requirement
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"` // of a failure: what was found; of a skipped one: why; may have any text of the module
}

// Report has a result for each requirement.
type Report struct {
	Conforms bool     `json:"conforms"` // no MUST has failed
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"` // MUST
	Warned   int      `json:"warned"` // SHOULD that failed
	Skipped  int      `json:"skipped"`
	Results  []Result `json:"results"`
}

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
	done                          bool
	weight, values, bounds, codes string // the first failure
	requeue, costly               string
	coded                         bool // a negative code was returned
}

// skipped is the error of a probe that cannot be made.
type skipped string

// Error implements error.
func (s skipped) Error() string { return string(s) }

// Run checks a module with settings, a JSON object or "". The error is that of the host or of ctx; failures of the module are in the report.
func Run(ctx context.Context, host *wasm.Host, name string, module []byte, settings string) (*Report, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := map[string]error{}
	c := &check{settings: settings}
	limits := wasm.DefaultLimits()
	_, info, err := meter.Rewrite(module, limits.Module)
	if err != nil {
		found[tck.Loads] = err
		return report(found, "the module is not valid", tck.Loads), nil
	}
	found[tck.Exports], found[tck.Imports] = wasm.CheckExports(info), wasm.CheckImports(info)
	if errors.Join(found[tck.Exports], found[tck.Imports]) != nil {
		return report(found, "the module does not load", tck.Exports, tck.Imports), nil
	}
	for _, e := range info.Exports {
		c.handles = c.handles || e.Name == "sluice_configure"
	}
	p, err := host.Open(ctx, name, module, wasm.LoadOptions{})
	if err != nil {
		found[tck.Loads] = err
		return report(found, "the module does not load", tck.Exports, tck.Imports, tck.Loads), ctx.Err()
	}
	defer p.Close()
	c.plugin = p
	if _, err := c.open(); err != nil {
		if settings == "" && c.handles {
			err = fmt.Errorf("%w: without settings; if it needs some, pass them with --settings", err)
		}
		found[tck.Settings] = err
		return report(found, "the settings are not accepted ("+tck.Settings+")", tck.Exports, tck.Imports, tck.Loads, tck.Settings), ctx.Err()
	}
	c.close()
	for _, probe := range probes() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found[probe.id] = probe.run(ctx, c)
		c.close()
	}
	all := make([]string, 0, len(found))
	for _, r := range tck.Requirements() {
		all = append(all, r.ID)
	}
	return report(found, "", all...), ctx.Err()
}

// close releases all instances.
func (c *check) close() {
	for _, g := range c.guests {
		g.in.Close()
	}
	c.guests = nil
}

// report makes the report: those that were tried have the verdict of their error, others are skipped.
func report(found map[string]error, why string, tried ...string) *Report {
	isTried := map[string]bool{}
	for _, id := range tried {
		isTried[id] = true
	}
	r := &Report{}
	for _, q := range tck.Requirements() {
		x := Result{Requirement: q, Verdict: Pass}
		var skip skipped
		switch err := found[q.ID]; {
		case errors.As(err, &skip):
			x.Verdict, x.Detail = Skip, string(skip)
			r.Skipped++
		case err != nil && q.Level == tck.Should:
			x.Verdict, x.Detail = Fail, err.Error()
			r.Warned++
		case err != nil:
			x.Verdict, x.Detail = Fail, err.Error()
			r.Failed++
		case !isTried[q.ID]:
			x.Verdict, x.Detail = Skip, why
			r.Skipped++
		default:
			r.Passed++
		}
		r.Results = append(r.Results, x)
	}
	r.Conforms = r.Failed == 0
	return r
}
