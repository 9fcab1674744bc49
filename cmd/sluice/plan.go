package main

import (
	"encoding/json"
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
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the plan of a node",
		Long: `Reads the cluster state once, and prints every frontend of a node with its endpoints, their weights and shares, and what
the backend cannot represent, and how the shadows of policies compare. Needs neither root nor a kernel, and changes nothing.`,
		Example: "  sluice plan --kubeconfig ~/.kube/config --node node-a1\n  sluice plan --source examples/boutique/manifests --node node-a1 --config examples/boutique/sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
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
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(struct {
					Plan         *plan.Plan            `json:"plan"`
					Degradations []plan.Degradation    `json:"degradations"`
					Shadows      []state.ServiceShadow `json:"shadows"` // those that diverge the most first
				}{pl.Current(), append([]plan.Degradation{}, lost...), shadows})
			}
			fmt.Fprint(cmd.OutOrStdout(), plan.Format(pl.Current()))
			if len(lost) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\n# degradations: what the backend cannot represent\n")
				for _, d := range lost {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", printable.Escape(d.String()))
				}
			}
			printShadows(cmd.OutOrStdout(), shadows)
			return nil
		},
	}
	in.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func checkOutput(output string, allowed ...string) error {
	if !slices.Contains(allowed, output) {
		return usageError{fmt.Errorf("--output %q: must be one of %s", output, strings.Join(allowed, ", "))}
	}
	return nil
}
