package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/abiconformance"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// conformanceResult is the result of `sluice plugin check --conformance`.
type conformanceResult struct {
	File   string `json:"file"`
	Digest string `json:"digest"`
	tck.Report
}

// conformance prints a verdict for each requirement of the ABI. The error is not nil if the module does not conform.
func (c *pluginCheck) conformance(ctx context.Context, out io.Writer, output string) error {
	result := &conformanceResult{File: c.file, Digest: digestOf(c.module)}
	err := c.withHost(ctx, plugins.UserCacheDir(), func(ctx context.Context, host *wasm.Host) error {
		report, err := abiconformance.Run(ctx, host, c.file, c.module, string(c.settings))
		if err == nil {
			result.Report = *report
		}
		return err
	})
	if err != nil {
		return config.PrefixErrors("plugin check: "+c.file, err)
	}
	if output == "text" {
		result.Print(out)
	} else if err := printer.Object(out, output, result); err != nil {
		return err
	}
	if !result.Conforms {
		return fmt.Errorf("plugin check: %s: %d of %d requirements of the plugin ABI are not met", c.file, result.Failed, len(result.Results))
	}
	return nil
}
