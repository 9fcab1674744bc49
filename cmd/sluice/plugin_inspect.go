package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// inspection is the result of `sluice plugin inspect`.
type inspection struct {
	moduleInfo
	Manifest *manifest.Manifest `json:"manifest,omitempty"`
	Plugin   *pluginInfo        `json:"plugin,omitempty"`
	Error    string             `json:"error,omitempty"` // why there is no Plugin
	Limits   pluginLimits       `json:"limits"`
}

// pluginLimits are those of an instance.
type pluginLimits struct {
	MemoryBytes        uint64 `json:"memoryBytes"`
	DecideFuel         int64  `json:"decideFuel"` // of a decision, plus …
	EndpointFuel       int64  `json:"endpointFuel"`
	ConfigureFuel      int64  `json:"configureFuel"`
	InitFuel           int64  `json:"initFuel"`
	DecideMilliseconds int64  `json:"decideMilliseconds"` // CPU time
	LogBytes           int    `json:"logBytes"`           // of a call
	SettingsBytes      int    `json:"settingsBytes"`
}

func newPluginInspectCommand() *cobra.Command {
	var settings, output string
	cmd := &cobra.Command{
		Use:   "inspect FILE|IMAGE",
		Short: "Print what a plugin imports, exports and asks for",
		Long: `Prints what a WebAssembly module says of itself (title, version, licence, role, settings), its digest, size, memory, imports, exports and
producers, the inputs that the plugin asks for with its settings, and the limits of its calls. A module that cannot be read is an error. One that
'sluice run' would refuse is not: the reason is part of the result; 'sluice plugin check' judges.`,
		Example: "  sluice plugin inspect bin/plugins/locality.wasm\n  sluice plugin inspect near.wasm -o json",
		Args:    oneArg("WebAssembly module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			check, err := newPluginCheck(cmd, args[0], settings)
			if err != nil {
				return err
			}
			x, err := check.inspect(cmd.Context())
			if err != nil {
				return config.PrefixErrors("plugin inspect: "+args[0], err)
			}
			if output != "text" {
				return printer.Object(cmd.OutOrStdout(), output, x)
			}
			return x.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&settings, "settings", "", "the policy's settings for this plugin, as JSON: the inputs that it asks for may depend on them")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

func (c *pluginCheck) inspect(ctx context.Context) (*inspection, error) {
	l := wasm.DefaultLimits()
	_, info, err := meter.Rewrite(c.module, l.Module)
	if err != nil {
		return nil, err
	}
	const page = 1 << 16
	x := &inspection{moduleInfo: newModuleInfo(c.file, c.module, info), Limits: pluginLimits{
		MemoryBytes: uint64(l.MemoryPages) * page, DecideFuel: l.DecideFuel, EndpointFuel: l.EndpointFuel, ConfigureFuel: l.ConfigureFuel, InitFuel: l.InitFuel,
		DecideMilliseconds: l.DecideTime.Milliseconds(), LogBytes: l.LogBytes, SettingsBytes: l.Settings,
	}}
	if m, err := manifest.Read(c.module); err == nil {
		x.Manifest = m
	}
	err = c.withHost(ctx, plugins.UserCacheDir(), func(ctx context.Context, host *wasm.Host) error {
		p, err := host.Load(ctx, c.file, c.module, c.settings)
		if err != nil {
			x.Error = err.Error()
			return nil
		}
		report := p.Report()
		info := newPluginInfo(&report)
		x.Plugin = &info
		return p.Close()
	})
	return x, err
}

func (x *inspection) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := newLine(w)
	line("file", "%s", x.File)
	if m := x.Manifest; m != nil {
		line("title", "%s", m.Title)
		line("version", "%s, licence %s", m.Release, m.Licence)
		if x.Plugin == nil { // or that says it
			line("role", "%s", m.Role)
		}
	}
	line("digest", "%s", x.Digest)
	line("size", "%d bytes, metered %d", x.Bytes, x.MeteredBytes)
	line("functions", "%d, the largest %d bytes", x.Functions, x.LargestFunction)
	maximum := "no maximum"
	if x.MaximumMemoryBytes > 0 {
		maximum = fmt.Sprintf("at most %d KiB", x.MaximumMemoryBytes>>10)
	}
	line("memory", "%d KiB declared, %s; the limit is %d KiB", x.MemoryBytes>>10, maximum, x.Limits.MemoryBytes>>10)
	line("producers", "%s", x.producersText())
	if x.Plugin != nil {
		x.Plugin.print(line)
	} else {
		line("refused", "%s", x.Error)
	}
	if m := x.Manifest; m != nil {
		for _, c := range m.Counters {
			line("counter", "%s: %s", c.Name, c.Text)
		}
		switch {
		case m.Settings == nil:
			line("setting", "any: the module does not say")
		case len(m.Settings) == 0:
			line("setting", "none")
		}
		for _, r := range m.Rows() {
			line("setting", "%s", r.String())
		}
	}
	line("budget", "fuel %d and %d for each endpoint, %d ms of CPU time per decision", x.Limits.DecideFuel, x.Limits.EndpointFuel, x.Limits.DecideMilliseconds)
	for _, im := range x.Imports {
		line("import", "%s %s %s", im.Module, meter.Printable(im.Name, maxName), im.Type)
	}
	for _, e := range x.Exports {
		line("export", "%s %s %s", meter.Printable(e.Name, maxName), e.Kind, e.Type)
	}
	return w.Flush()
}

// maxName bounds the names of imports and exports in text, in bytes.
const maxName = 200

// newLine returns a function that prints a name and a text, which it escapes, in two columns.
func newLine(w io.Writer) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, printable.Escape(fmt.Sprintf(format, args...)))
	}
}
