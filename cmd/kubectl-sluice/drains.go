package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// ClusterDrain is an endpoint that drains, as the nodes together see it.
type ClusterDrain struct {
	Service  string     `json:"service"`
	Port     string     `json:"port,omitempty"`
	Number   uint16     `json:"number"`
	Protocol string     `json:"protocol"`
	Address  string     `json:"address"`
	Pod      string     `json:"pod,omitempty"`
	Node     string     `json:"node,omitempty"`  // of the Pod
	Since    *time.Time `json:"since,omitempty"` // the earliest of all nodes
	// Stages are the numbers of nodes by stage.
	Stages map[string]int `json:"stages"`
	// Connections are those through all nodes that count them; Uncounted is the number of nodes that do not.
	Connections uint64 `json:"connections"`
	Uncounted   int    `json:"uncounted,omitempty"`
}

// ClusterDrains are the drains of a cluster.
type ClusterDrains struct {
	At     time.Time      `json:"at"`
	Nodes  int            `json:"nodes"` // that have answered
	Silent []NodeStatus   `json:"silent,omitempty"`
	Drains []ClusterDrain `json:"drains"`
}

func newDrainsCommand(o *options) *cobra.Command {
	var out output
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "drains [[NAMESPACE/]SERVICE]",
		Short: "Show which endpoints drain, and how many connections they still have through all nodes",
		Long: `Prints for each endpoint that drains: since when, at which stage on how many nodes, and how many connections it still has through all
nodes. Without a Service and -n, those of all namespaces.`,
		Example: "  kubectl sluice drains\n  kubectl sluice drains -n shop catalog --watch",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, service := o.namespace, ""
			c, err := o.cluster()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				service = c.name(args[0]).String()
			}
			for {
				x, err := c.drains(cmd.Context(), namespace, service)
				if cmd.Context().Err() != nil && watch {
					return nil
				} else if err != nil {
					return err
				}
				if err := printClusterDrains(cmd.OutOrStdout(), x, out, watch); err != nil || !watch {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(interval):
				}
			}
		},
	}
	cmd.ValidArgsFunction = o.completeServices
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again after each --interval, until interrupted")
	flagrange.Duration(cmd.Flags(), &interval, "interval", 5*time.Second, time.Second, 24*time.Hour, "with --watch: how often to look")
	out.register(cmd)
	return cmd
}

// drains asks all agents for their drains, of a Service or a namespace; "" is all.
func (c *cluster) drains(ctx context.Context, namespace, service string) (*ClusterDrains, error) {
	all, err := c.agents(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]*api.Drains, len(all))
	errs := askAll(ctx, all, func(ctx context.Context, i int, client *stateclient.Client) (err error) {
		answers[i], err = client.Drains(ctx)
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	out := &ClusterDrains{At: time.Now().UTC(), Drains: []ClusterDrain{}}
	for i, x := range answers {
		if errs[i] != nil {
			out.Silent = append(out.Silent, NodeStatus{Node: all[i].node, Pod: all[i].pod, Error: strings.TrimPrefix(errs[i].Error(), "node "+all[i].node+": ")})
			continue
		}
		out.Nodes++
		x.Filter(namespace, service)
		out.add(x)
	}
	if out.Nodes == 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortFunc(out.Drains, func(a, b ClusterDrain) int { return strings.Compare(a.key(), b.key()) })
	return out, nil
}

// add adds the drains of a node.
func (x *ClusterDrains) add(of *api.Drains) {
	for i := range of.Drains {
		d := &of.Drains[i]
		next := ClusterDrain{
			Service: d.Service, Port: d.Port, Number: d.Number, Protocol: d.Protocol, Address: d.Address, Pod: d.Pod, Node: d.Node, Stages: map[string]int{},
		}
		at := slices.IndexFunc(x.Drains, func(o ClusterDrain) bool { return o.key() == next.key() })
		if at < 0 {
			at = len(x.Drains)
			x.Drains = append(x.Drains, next)
		}
		sum := &x.Drains[at]
		sum.Stages[d.Stage]++
		if d.Since != nil && (sum.Since == nil || d.Since.Before(*sum.Since)) {
			sum.Since = d.Since
		}
		if d.Connections == nil {
			sum.Uncounted++
		} else {
			sum.Connections += uint64(*d.Connections)
		}
	}
}

func (d *ClusterDrain) key() string {
	return fmt.Sprintf("%s %05d %s %s %s", d.Service, d.Number, d.Protocol, d.Port, d.Address)
}

func printClusterDrains(w io.Writer, x *ClusterDrains, out output, watch bool) error {
	switch {
	case out == "json" && watch:
		return json.NewEncoder(w).Encode(x)
	case out.structured():
		if watch {
			fmt.Fprintln(w, "---")
		}
		return printer.Object(w, string(out), x)
	}
	x = printable.Strings(x)
	if watch {
		fmt.Fprintln(w, printer.ClockTime(x.At))
	}
	for i := range x.Silent {
		fmt.Fprintf(w, "node %s is not counted: %s\n", x.Silent[i].Node, x.Silent[i].Error)
	}
	if len(x.Drains) == 0 {
		_, err := fmt.Fprintf(w, "no endpoint drains on %d nodes\n", x.Nodes)
		return err
	}
	tw := printer.NewTable(w)
	fmt.Fprintln(tw, "SERVICE\tPORT\tENDPOINT\tPOD\tNODE\tFOR\tCONNECTIONS\tSTAGES")
	for i := range x.Drains {
		d := &x.Drains[i]
		port, since := d.Port, "-"
		if port == "" {
			port = strconv.Itoa(int(d.Number)) + "/" + d.Protocol
		}
		if d.Since != nil {
			since = printer.Ago(x.At, *d.Since)
		}
		connections := strconv.FormatUint(d.Connections, 10)
		if d.Uncounted > 0 {
			connections += fmt.Sprintf(" (unknown on %d nodes)", d.Uncounted)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Service, port, d.Address, dash(d.Pod), dash(d.Node), since, connections, stages(d.Stages))
	}
	return tw.Flush()
}

// stages lists stages with their numbers of nodes, the one of most nodes first.
func stages(nodes map[string]int) string {
	var names []string
	for name := range nodes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if nodes[a] != nodes[b] {
			return nodes[b] - nodes[a]
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s on %d", name, nodes[name])
	}
	return strings.Join(names, ", ")
}
