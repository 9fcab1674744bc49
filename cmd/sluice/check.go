package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/probe"
)

func newCheckCommand() *cobra.Command {
	var path, output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether sluice can work on this host, and what is missing",
		Long: `Tries the kernel features that the ruleset uses, looks at capabilities, kernel settings and the connection table,
and holds the configuration against this host. For all that is missing it says which feature of sluice that costs.
Nothing on the host is changed: the features are tried in a network namespace of their own, or, without the right to
make one, in transactions that the kernel takes back. The exit code is 1 when something is missing that sluice does
not work without.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			in := inputFlags{config: path}
			cfg, err := in.load()
			if err != nil {
				return err
			}
			findings := agent.Check(cmd.Context(), cfg)
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(struct {
					OK       bool            `json:"ok"`
					Findings []probe.Finding `json:"findings"`
				}{!probe.RequiredMissing(findings), findings})
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && probe.RequiredMissing(findings) {
				err = errors.New("something is missing that sluice does not work without")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (SluiceConfiguration)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// printFindings is for people: a line for what is there, more for what is not.
func printFindings(w io.Writer, findings []probe.Finding) error {
	var b strings.Builder
	group := ""
	for _, f := range findings {
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
