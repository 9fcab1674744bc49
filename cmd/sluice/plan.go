package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func newPlanCommand() *cobra.Command {
	var in inputFlags
	var output, namespace string
	var fail failOn
	cmd := &cobra.Command{
		Use:   "plan [-n NAMESPACE [SERVICE]]",
		Short: "Print the plan of a node",
		Long: `Reads the cluster state once, and prints every frontend of a node with its endpoints, their weights and shares, and what
the backend cannot represent, and how the shadows of policies compare. With a namespace, or a Service of it, only theirs. Needs neither root nor a kernel, and changes nothing.`,
		Example: "  sluice plan --kubeconfig ~/.kube/config --node node-a1\n  sluice plan --source examples/boutique/manifests --node node-a1 --config examples/boutique/sluice.yaml",
		Args:    atMostOneArg("Service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			only, err := newServiceFilter(namespace, args)
			if err != nil {
				return err
			}
			in.serviceFilter = only.service()
			if err := errors.Join(checkOutput(output, "text", "json", "yaml"), fail.check()); err != nil {
				return err
			}
			pl, closePlugins, err := in.planOnce(cmd.Context())
			if err != nil {
				return err
			}
			defer closePlugins()
			shadows := state.NewShadows(pl.Shadows())
			lost := only.degradations(slices.Concat(pl.Omitted(), pl.Conflicts(), pl.Current().Degradations()))
			shadows = only.shadows(shadows)
			current := only.plan(pl.Current())
			if only.Name != "" && len(current.Frontends) == 0 && pl.Service(model.Name(only)) == nil {
				return pl.NotFound(model.Name(only))
			}
			if output != "text" {
				if err := printer.Object(cmd.OutOrStdout(), output, struct {
					Plan         *plan.Plan          `json:"plan"`
					Degradations []plan.Degradation  `json:"degradations"`
					Shadows      []api.ServiceShadow `json:"shadows"` // those that diverge the most first
					*api.Node
				}{current, append([]plan.Degradation{}, lost...), shadows, in.planned.node}); err != nil {
					return err
				}
				return fail.errorOf(in.planned.failing, slices.Concat(degradations(lost), in.planned.shadows))
			}
			fmt.Fprint(cmd.OutOrStdout(), plan.Format(current))
			if len(lost) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\n# degradations: what the backend cannot represent\n")
				for _, d := range lost {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", printable.Escape(d.String()))
				}
			}
			if refused := refusals(pl, current); len(refused) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\n# routes: connections that are refused\n")
				for _, text := range refused {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", printable.Escape(text))
				}
			}
			if len(in.planned.presets) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "\n# presets: policies that come with sluice\n")
				for _, text := range in.planned.presets {
					fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", text)
				}
			}
			printer.Shadows(cmd.OutOrStdout(), shadows)
			return fail.errorOf(in.planned.failing, slices.Concat(degradations(lost), in.planned.shadows))
		},
	}
	in.register(cmd)
	fail.register(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "print only Services of this namespace (default: all)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// refusals says what routes refuse of the connections to the frontends of a plan, and why.
func refusals(pl *planner.Planner, p *plan.Plan) (out []string) {
	services := map[model.Name]bool{}
	for _, f := range p.Frontends {
		for e := range f.AllEndpoints() {
			services[f.Owner.Service] = services[f.Owner.Service] || plan.IsRefusing(e.Addr.Addr())
		}
		services[f.Owner.Service] = services[f.Owner.Service] || f.Pool.Verdict != plan.Forward
	}
	maps.DeleteFunc(services, func(_ model.Name, refuses bool) bool { return !refuses })
	for _, name := range slices.SortedFunc(maps.Keys(services), model.Name.Compare) {
		x, err := pl.Explain(name)
		if err != nil {
			continue // it has been deleted, and its frontends go
		}
		for _, split := range x.Splits {
			for pool := abi.PoolCluster; split != nil && pool <= abi.PoolLocal; pool++ {
				for _, text := range split.Refusals(pool) {
					out = append(out, fmt.Sprintf("%s %s: %s", split.Decision.Port.Name, split.Decision.Port.Family, text))
				}
			}
		}
	}
	return slices.Compact(out)
}

// plan returns what of a plan is to be printed.
func (f serviceFilter) plan(p *plan.Plan) *plan.Plan {
	if f == (serviceFilter{}) {
		return p
	}
	out := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	for key, frontend := range p.Frontends {
		if f.has(frontend.Owner.Service) {
			out.Frontends[key] = frontend
		}
	}
	return out
}

func (f serviceFilter) degradations(all []plan.Degradation) []plan.Degradation {
	return slices.DeleteFunc(all, func(d plan.Degradation) bool { return !f.has(d.Owner.Service) })
}

func (f serviceFilter) shadows(all []api.ServiceShadow) []api.ServiceShadow {
	return slices.DeleteFunc(all, func(s api.ServiceShadow) bool {
		ns, name, _ := strings.Cut(s.Service, "/")
		return !f.has(model.Name{Namespace: ns, Name: name})
	})
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
