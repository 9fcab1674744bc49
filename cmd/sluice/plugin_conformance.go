package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/printable"
	"github.com/sluice-proxy/sluice/host/wasm"
	"github.com/sluice-proxy/sluice/host/wasm/conformance"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// conformanceResult is the result of `sluice plugin check --conformance`.
type conformanceResult struct {
	File   string `json:"file"`
	Digest string `json:"digest"`
	conformance.Report
}

// conformance prints a verdict for each requirement of the ABI. The error is not nil if the module does not conform.
func (c *pluginCheck) conformance(ctx context.Context, out io.Writer, output string) error {
	module, err := readModule(ctx, c.file)
	if err != nil {
		return config.PrefixErrors("plugin check: "+c.file, err)
	}
	result := &conformanceResult{File: c.file, Digest: digestOf(module)}
	err = c.withHost(ctx, plugins.UserCacheDir(), func(ctx context.Context, host *wasm.Host) error {
		report, err := conformance.Run(ctx, host, c.file, module, string(c.settings))
		if err == nil {
			result.Report = *report
		}
		return err
	})
	if err != nil {
		return config.PrefixErrors("plugin check: "+c.file, err)
	}
	if output == "text" {
		result.print(out)
	} else if err := printer.Object(out, output, result); err != nil {
		return err
	}
	if !result.Conforms {
		return fmt.Errorf("plugin check: %s: %d of %d requirements of the plugin ABI are not met", c.file, result.Failed, len(result.Results))
	}
	return nil
}

func (r *conformanceResult) print(out io.Writer) {
	for i := range r.Results {
		x := &r.Results[i]
		verdict := string(x.Verdict)
		if x.Verdict == conformance.Fail {
			verdict = map[tck.Level]string{tck.Must: "FAIL", tck.Should: "warn"}[x.Level]
		}
		fmt.Fprintf(out, "%-4s  %s  %-6s  %s\n", verdict, x.ID, x.Level, x.Text)
		switch x.Verdict {
		case conformance.Fail:
			fmt.Fprintf(out, "      found: %s\n      to do: %s (ABI.md, %s)\n", printable.Escape(x.Detail), x.Advice, x.Section)
		case conformance.Skip:
			fmt.Fprintf(out, "      %s\n", printable.Escape(x.Detail))
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d warnings, %d skipped\n", r.Passed, r.Failed, r.Warned, r.Skipped)
}
