package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent/state"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/printable"
)

func newPlanCommand() *cobra.Command {
	var in inputFlags
	var output string
	var fail failOn
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the plan of a node",
		Long: `Reads the cluster state once, and prints every frontend of a node with its endpoints, their weights and shares, and what
the backend cannot represent, and how the shadows of policies compare. Needs neither root nor a kernel, and changes nothing.`,
		Example: "  sluice plan --kubeconfig ~/.kube/config --node node-a1\n  sluice plan --source examples/boutique/manifests --node node-a1 --config examples/boutique/sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkOutput(output, "text", "json"), fail.check()); err != nil {
				return err
			}
			pl, closePlugins, err := in.planOnce(cmd.Context())
			if err != nil {
				return err
			}
			defer closePlugins()
			caps, err := in.caps()
			if err != nil {
				return err
			}
			_, lost := plan.Normalize(pl.Current(), caps)
			shadows := state.NewShadows(pl.Shadows())
			lost = slices.Concat(pl.Omitted(), pl.Conflicts(), lost)
			if output == "json" {
				if err := printJSON(cmd.OutOrStdout(), struct {
					Plan         *plan.Plan            `json:"plan"`
					Degradations []plan.Degradation    `json:"degradations"`
					Shadows      []state.ServiceShadow `json:"shadows"` // those that diverge the most first
					*state.Node
				}{pl.Current(), append([]plan.Degradation{}, lost...), shadows, in.planned.node}); err != nil {
					return err
				}
				return fail.errorOf(in.planned.failing, slices.Concat(degradations(lost), in.planned.shadows))
			}
			fmt.Fprint(cmd.OutOrStdout(), plan.Format(pl.Current()))
			if len(lost) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\n# degradations: what the backend cannot represent\n")
				for _, d := range lost {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", printable.Escape(d.String()))
				}
			}
			printShadows(cmd.OutOrStdout(), shadows)
			return fail.errorOf(in.planned.failing, slices.Concat(degradations(lost), in.planned.shadows))
		},
	}
	in.register(cmd)
	fail.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func degradations(lost []plan.Degradation) (out []string) {
	for i := range lost {
		out = append(out, lost[i].String())
	}
	return out
}

func checkOutput(output string, allowed ...string) error {
	return checkFlag("output", output, allowed...)
}

// checkFlag returns an error if the value of a flag is none of those allowed.
func checkFlag(name, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return usageError{fmt.Errorf("--%s %q: must be one of %s", name, value, strings.Join(allowed, ", "))}
	}
	return nil
}
