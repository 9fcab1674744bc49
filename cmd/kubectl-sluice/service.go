package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newExplainCommand(o *options) *cobra.Command {
	var out output
	var at nodeFlags
	var allNamespaces bool
	cmd := &cobra.Command{
		Use:   "explain [[NAMESPACE/]SERVICE]",
		Short: "Show why each endpoint of a Service gets its share of connections on a node",
		Long: `Prints what 'sluice explain' prints on a node: for each endpoint whether it is eligible, the weight and reason of each plugin, and its
share of new connections. Without a Service, it lists those of the namespace.

Nodes may decide differently: --node or --pod selects one. Without them it is the first one that runs sluice, and the output names it.`,
		Example: "  kubectl sluice explain -n shop catalog --pod cart-0\n  kubectl sluice explain -A --node node-a1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (out == "wide" || out == "name") {
				return usageError{fmt.Errorf("--output %s: only for the list of Services", out)}
			}
			c, err := o.cluster()
			if err != nil {
				return err
			}
			a, err := at.agent(cmd.Context(), c)
			if err != nil {
				return err
			}
			return a.ask(cmd.Context(), func(ctx context.Context, client *stateclient.Client) error {
				if len(args) == 0 {
					namespace := c.namespace
					if allNamespaces {
						namespace = ""
					}
					return listServices(ctx, cmd, client, namespace, out)
				}
				x, err := client.Explain(ctx, c.name(args[0]), false)
				if err != nil {
					return err
				}
				if out.structured() {
					return printer.Object(cmd.OutOrStdout(), string(out), x)
				}
				return printer.Explanation(cmd.OutOrStdout(), x, "")
			})
		},
	}
	cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "without a Service: list those of all namespaces")
	cmd.ValidArgsFunction = o.completeServices
	at.register(cmd)
	out.register(cmd, "wide", "name")
	return cmd
}

func listServices(ctx context.Context, cmd *cobra.Command, client *stateclient.Client, namespace string, out output) error {
	list, err := client.Services(ctx, namespace)
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if out.structured() {
		return printer.Object(w, string(out), list)
	}
	if out == "name" {
		for i := range list.Services {
			fmt.Fprintln(w, printable.Escape("service/"+list.Services[i].Name))
		}
		return nil
	}
	return printer.Services(w, list, namespace, out == "wide")
}

// name returns the name of an object: NAME or NAMESPACE/NAME.
func (c *cluster) name(text string) api.Name {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return api.Name{Namespace: namespace, Name: name}
	}
	return api.Name{Namespace: c.namespace, Name: text}
}

func newTraceCommand(o *options) *cobra.Command {
	var out output
	var at nodeFlags
	var q api.FlowQuery
	var fail bool
	cmd := &cobra.Command{
		Use:   "trace --from POD|ADDRESS --to SERVICE[:PORT]|ADDRESS:PORT",
		Short: "Show what happens to a new connection, and why",
		Long: `Prints what happens to a new connection on a node: DNAT with the endpoints that it may reach, REJECT, DROP, or NONE if it is not to a
Service. Sends nothing.

It asks the sluice of the Node of the Pod of --from, or of --node. Pods and Services are named NAME or NAMESPACE/NAME.`,
		Example: "  kubectl sluice trace -n shop --from cart-0 --to catalog:grpc\n  kubectl sluice trace --from 192.0.2.7 --to 203.0.113.10:443 --node node-a1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.cluster()
			if err != nil {
				return err
			}
			q.Namespace = c.namespace
			if err := q.Check("--"); err != nil {
				return usageError{err}
			}
			if _, err := api.ParseIP(q.From); err != nil && at.node == "" && at.pod == "" {
				at.pod = q.From
			}
			a, err := at.agent(cmd.Context(), c)
			if err != nil {
				return err
			}
			var x *api.Traced
			if err := a.ask(cmd.Context(), func(ctx context.Context, client *stateclient.Client) (err error) {
				x, err = client.Trace(ctx, &q)
				return err
			}); err != nil {
				return err
			}
			if err := printTraced(cmd, x, out); err != nil {
				return err
			}
			if fail && (x.Verdict == "REJECT" || x.Verdict == "DROP") {
				return stateError{fmt.Errorf("--fail: the connection meets %s", x.Verdict)}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&q.From, "from", "", "source of the connection: a Pod, or an address")
	cmd.Flags().StringVar(&q.To, "to", "", "destination: a Service with an optional port (name or number), or address and port, IPv6 as [ADDRESS]:PORT")
	cmd.Flags().StringVar(&q.Protocol, "protocol", "", "TCP, UDP or SCTP (default: that of the port of the Service, else TCP)")
	cmd.Flags().StringVar(&q.Interface, "interface", "", "interface of the node that it arrives on, if detectLocalMode detects Pods by interface")
	cmd.Flags().BoolVar(&fail, "fail", false, "exit with code 3 if the connection is rejected or dropped")
	_ = cmd.RegisterFlagCompletionFunc("from", o.completePods)
	_ = cmd.RegisterFlagCompletionFunc("to", o.completeServices)
	at.register(cmd)
	out.register(cmd)
	return cmd
}

func printTraced(cmd *cobra.Command, x *api.Traced, out output) error {
	if out.structured() {
		return printer.Object(cmd.OutOrStdout(), string(out), x)
	}
	if x.Flow == nil {
		return fmt.Errorf("the answer has no flow")
	}
	return printer.Trace(cmd.OutOrStdout(), x, x.Flow)
}
