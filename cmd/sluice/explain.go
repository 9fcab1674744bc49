package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newExplainCommand() *cobra.Command {
	var in inputFlags
	var output, socket, namespace, dump string
	var all bool
	var fail failOn
	var at atFlag
	cmd := &cobra.Command{
		Use:   "explain [-n NAMESPACE] [SERVICE]",
		Short: "Show why each endpoint of a Service gets its share of connections",
		Long: `Prints for each endpoint of a Service whether it is eligible or why not, its weight by the default rules, the weight and
reason of each plugin, its share of new connections, and the weight that is programmed in the kernel; and for each plugin every
input that it saw when it gave its last answer. Without a Service, it lists those of the namespace.

It asks the sluice that is running on this node. With --kubeconfig, --server or --source, it reads the cluster state and
plans by itself, which needs neither root nor a kernel; with --at as at another time. The kernel's weights are shown if they may be read.`,
		Example: "  sluice explain -n shop\n  sluice explain -n shop catalog\n  sluice explain --source examples/boutique/manifests --node node-a1 -n shop catalog",
		Args:    atMostOneArg("Service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if all {
					namespace = ""
				}
				return in.listServices(cmd, socket, namespace, output)
			}
			if err := errors.Join(checkOutput(output, "text", "json", "yaml"), fail.check()); err != nil {
				return err
			}
			name := model.Name{Namespace: namespace, Name: args[0]}
			if ns, svc, ok := strings.Cut(args[0], "/"); ok {
				name = model.Name{Namespace: ns, Name: svc}
			}
			var x *api.Explanation
			var err error
			if err := in.check(); err != nil {
				return err
			}
			if at.given() && !in.hasSource() {
				return usageError{errors.New("--at needs a source of cluster state: the sluice that runs has the present time")}
			}
			if at.given() {
				if in.at, err = at.time(time.Now()); err != nil {
					return err
				}
			}
			switch {
			case in.hasSource():
				x, err = in.explain(cmd.Context(), name)
			default:
				if x, err = stateclient.OnSocket(socket).Explain(cmd.Context(), api.Name(name), dump != ""); errors.As(err, new(*stateclient.NotRunningError)) {
					err = fmt.Errorf("%w; set --socket, or set --kubeconfig or --source to plan without it", err)
				}
			}
			if err != nil {
				return err
			}
			if dump != "" {
				files, err := dumpRequests(dump, x.Requests)
				for _, file := range files {
					fmt.Fprintln(cmd.OutOrStdout(), printable.Escape(file))
				}
				return err
			}
			x.Requests = nil
			note := addKernel(cmd.Context(), x, !in.hasSource())
			if output != "text" {
				err = printer.Object(cmd.OutOrStdout(), output, x)
			} else {
				err = printer.Explanation(cmd.OutOrStdout(), x, note)
			}
			if err != nil {
				return err
			}
			return fail.errorOf(x.Problems())
		},
	}
	in.register(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the Service")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "without a Service: list those of all namespaces")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml; for a list also wide, with the frontends")
	cmd.Flags().StringVar(&dump, "dump-request", "", "write the requests that the plugins have answered to this directory instead, one a file, for sdktest and plugin bench")
	at.register(cmd, "now")
	fail.register(cmd)
	registerSocket(cmd, &socket)
	return cmd
}

func registerSocket(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", api.DefaultSocket, "Unix socket of the running sluice")
}

// explain plans the cluster state of the flags, and explains one Service.
func (in *inputFlags) explain(ctx context.Context, name model.Name) (*api.Explanation, error) {
	in.serviceFilter = name.String()
	pl, closePlugins, err := in.planOnce(ctx)
	if err != nil {
		return nil, err
	}
	defer closePlugins()
	x, err := pl.Explain(name)
	if err != nil {
		return nil, err
	}
	out := state.NewExplanation(x, time.UnixMilli)
	out.Node = in.planned.node
	if !in.at.IsZero() {
		out.At = &in.at
	}
	state.AddWithoutPort(out, x)
	return out, state.AddRequests(out, x)
}

// addKernel adds the weights in the kernel to an explanation, which is that of the sluice that runs or of another plan. If it
// cannot, note is the reason.
func addKernel(ctx context.Context, x *api.Explanation, running bool) (note string) {
	modes := dataplane.All()
	programmed, err := modes.Read(ctx)
	if err != nil {
		return "not shown: " + err.Error()
	}
	if len(programmed.Frontends) == 0 {
		return "nothing is programmed"
	}
	state.AddKernel(x, programmed, running)
	if stats, err := modes.Stats(ctx, math.MaxInt); err == nil {
		agent.AddIPVSStats(x, stats)
	}
	return ""
}
