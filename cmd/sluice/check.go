package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newCheckCommand() *cobra.Command {
	var path, output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether this host has everything that sluice needs",
		Long: `Checks this host's kernel features, capabilities, sysctls and conntrack table, whether it lets plugins run, the addresses and
interfaces that the configuration names, and whether the API server lets sluice read Pods if a plugin asks for it. For each one missing, prints what will not work. Nothing on the host is changed: features are
tried in a temporary network namespace or, without permission to create one, in transactions that are rolled back. The
exit code is 1 if something required is missing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			in := inputFlags{config: path}
			cfg, err := in.load()
			if err != nil {
				return err
			}
			findings := append(agent.Check(cmd.Context(), cfg), checkPlugins(cmd.Context(), &in, cfg)...)
			if output != "text" {
				err = printer.Object(cmd.OutOrStdout(), output, struct {
					OK       bool            `json:"ok"`
					Findings []probe.Finding `json:"findings"`
				}{!probe.RequiredMissing(findings), findings})
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && probe.RequiredMissing(findings) {
				err = errors.New("this host lacks something that sluice requires")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (SluiceConfiguration)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// checkPlugins checks whether plugins can run, loads those of a configuration, and checks the permissions for the inputs that
// they declare.
func checkPlugins(ctx context.Context, in *inputFlags, cfg *config.Config) []probe.Finding {
	executable := probe.Finding{Group: "plugins", Name: "executable memory", State: probe.OK}
	if err := wasm.CheckExecutable(); err != nil {
		executable.State, executable.Found = probe.Missing, err.Error()
		executable.Remedy = "permit it: execmem in the SELinux policy, no MemoryDenyWriteExecute in systemd's unit"
	}
	findings := []probe.Finding{executable, checkConfinement(wasm.CheckConfinement(ctx, compileCommand))}
	if len(cfg.Plugins) == 0 || executable.State != probe.OK {
		return findings
	}
	return append(findings, checkInputs(ctx, in, cfg)...)
}

// checkConfinement reports the layers of the confinement of processes that compile plugins.
func checkConfinement(layers []confine.Layer, err error) probe.Finding {
	f := probe.Finding{Group: "plugins", Name: "confinement of their processes", State: probe.OK}
	if err != nil {
		f.State, f.Found = probe.Unknown, err.Error()
		return f
	}
	var missing []string
	for _, l := range layers {
		if l.Err != "" {
			missing = append(missing, l.Name+": "+l.Err)
		}
	}
	if len(missing) > 0 {
		f.State, f.Found = probe.Missing, strings.Join(missing, "; ")
		f.Impact = "a module that exploits a mistake of the compiler meets fewer walls; those not named here hold"
		f.Remedy = "Linux 5.13 or later with Landlock among its security modules, seccomp, and a build without cgo"
	}
	return f
}

func checkInputs(ctx context.Context, in *inputFlags, cfg *config.Config) []probe.Finding {
	unknown := func(err error) []probe.Finding {
		return []probe.Finding{{
			Group: "plugins", Name: "inputs that they declare", State: probe.Unknown, Found: err.Error(), Remedy: "see sluice config check",
		}}
	}
	set, err := plugins.Open(ctx, cfg, plugins.Options{Compiler: compileCommand, Process: processCommand, Precompiled: precompiledPlugins(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return unknown(err)
	}
	defer set.Close(ctx)
	if _, err := set.Load(ctx, cfg, nil); err != nil {
		return unknown(err)
	}
	return agent.CheckReads(ctx, cfg, set.Get, func(ctx context.Context, resource string) ([]string, error) {
		client, err := in.connect(cfg)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		return client.Refused(ctx, resource)
	})
}

// printFindings prints findings in human-readable form: one line for each, more for what is missing.
func printFindings(w io.Writer, findings []probe.Finding) error {
	var b strings.Builder
	group := ""
	for _, f := range printable.Strings(findings) {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "%s\n", group)
		}
		line := fmt.Sprintf("  %-8s  %s", f.State, f.Name)
		if f.State == probe.Missing && f.Required {
			line += " (required)"
		}
		if f.Found != "" {
			line += ": " + f.Found
		}
		fmt.Fprintln(&b, line)
		for _, more := range []struct{ label, text string }{{"impact", f.Impact}, {"remedy", f.Remedy}} {
			if more.text != "" {
				fmt.Fprintf(&b, "            %s: %s\n", more.label, more.text)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
