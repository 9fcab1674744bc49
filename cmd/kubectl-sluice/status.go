package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// NodeStatus is the state of the sluice of a node.
type NodeStatus struct {
	Node   string      `json:"node"`
	Pod    string      `json:"pod,omitempty"`
	Error  string      `json:"error,omitempty"` // why there is no Status
	Status *api.Status `json:"status,omitempty"`
}

// NodeStatuses are the states of nodes.
type NodeStatuses struct {
	Nodes []NodeStatus `json:"nodes"` // sorted by name
}

func newStatusCommand(o *options) *cobra.Command {
	var out output
	var failOn []string
	cmd := &cobra.Command{
		Use:   "status [NODE...]",
		Short: "Show the state of the sluice of each node",
		Long: `Prints a line for each node: version, mode, revision of its policies, how long ago its last change was programmed, and what is failing
or degraded. With one NODE, it prints what 'sluice status' prints there.

The revision is a hash of the names and revisions of all policies in force: nodes with the same one decide alike. The exit code is 0 if
nothing is failing, and 3 if something is or a node does not answer (see --fail-on).`,
		Example: "  kubectl sluice status\n  kubectl sluice status -o wide\n  kubectl sluice status node-a1",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, s := range failOn {
				if s != "failing" && s != "degraded" {
					return usageError{fmt.Errorf("--fail-on %q: must be one of failing, degraded", s)}
				}
			}
			c, err := o.cluster()
			if err != nil {
				return err
			}
			list, err := c.statuses(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := printStatuses(cmd.OutOrStdout(), list, out, len(args) == 1); err != nil {
				return err
			}
			return list.failOn(failOn)
		},
	}
	cmd.ValidArgsFunction = o.completeNodes
	cmd.Flags().StringSliceVar(&failOn, "fail-on", []string{"failing"}, "exit with code 3 if something is failing, degraded, or either: failing,degraded")
	out.register(cmd, "wide", "name")
	return cmd
}

// statuses asks agents for their states.
func (c *cluster) statuses(ctx context.Context, nodes []string) (*NodeStatuses, error) {
	all, err := c.selected(ctx, nodes)
	if err != nil {
		return nil, err
	}
	out := &NodeStatuses{Nodes: make([]NodeStatus, len(all))}
	errs := askAll(ctx, all, func(ctx context.Context, i int, client *stateclient.Client) (err error) {
		out.Nodes[i].Status, err = client.Status(ctx)
		return err
	})
	for i, a := range all {
		out.Nodes[i].Node, out.Nodes[i].Pod = a.node, a.pod
		if errs[i] != nil {
			out.Nodes[i].Status, out.Nodes[i].Error = nil, strings.TrimPrefix(errs[i].Error(), "node "+a.node+": ")
		}
	}
	return out, ctx.Err()
}

// failOn returns an error that names the nodes that are in one of the states; one that does not answer is failing.
func (l *NodeStatuses) failOn(states []string) error {
	var bad []string
	for i := range l.Nodes {
		n := &l.Nodes[i]
		failing := n.Status == nil || len(n.Status.Failing) > 0
		if failing && slices.Contains(states, "failing") || n.Status != nil && len(n.Status.Degraded) > 0 && slices.Contains(states, "degraded") {
			bad = append(bad, n.Node)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	const maxNamed = 10
	text := strings.Join(bad[:min(len(bad), maxNamed)], ", ")
	if len(bad) > maxNamed {
		text += fmt.Sprintf(" and %d more", len(bad)-maxNamed)
	}
	return stateError{fmt.Errorf("%s: %d of %d nodes: %s", strings.Join(states, " or "), len(bad), len(l.Nodes), text)}
}

func printStatuses(w io.Writer, list *NodeStatuses, out output, one bool) error {
	switch {
	case out.structured():
		return printer.Object(w, string(out), list)
	case out == "name":
		for i := range list.Nodes {
			fmt.Fprintf(w, "node/%s\n", printable.Escape(list.Nodes[i].Node))
		}
		return nil
	case one && out == "text" && list.Nodes[0].Status != nil:
		return printer.Status(w, list.Nodes[0].Status)
	}
	list = printable.Strings(list)
	tw := printer.NewTable(w)
	head := "NODE\tVERSION\tMODE\tREVISION\tSYNCED\tFAILING\tDEGRADED\tDRAINS"
	if out == "wide" {
		head += "\tPOD\tZONE\tCONFIGURATION\tUPTIME\tSERVICES\tENDPOINTS"
	}
	fmt.Fprintln(tw, head+"\tPROBLEM")
	for i := range list.Nodes {
		n := &list.Nodes[i]
		s := n.Status
		if s == nil {
			cells := 7
			if out == "wide" {
				cells += 6
			}
			fmt.Fprintf(tw, "%s%s\t%s\n", n.Node, strings.Repeat("\t-", cells), n.Error)
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d", n.Node, cmp.Or(s.Version, "-"), s.Mode, revision(s), synced(s), len(s.Failing), len(s.Degraded), s.Plan.Draining)
		if out == "wide" {
			fmt.Fprintf(tw, "\t%s\t%s\t%s\t%s\t%d\t%d", n.Pod, cmp.Or(s.Zone, "-"), s.Configuration.Hash, printer.Ago(s.At, s.Started), s.Plan.Services, s.Plan.Endpoints)
		}
		fmt.Fprintf(tw, "\t%s\n", problem(s, out == "wide"))
	}
	return tw.Flush()
}

// synced says how long ago the kernel got the last change.
func synced(s *api.Status) string {
	switch {
	case s.Synced == nil:
		return "not yet"
	case s.Kernel.LastSync == nil:
		return "-"
	case !s.Kernel.InSync:
		return printer.Ago(s.At, *s.Kernel.LastSync) + " (late)"
	}
	return printer.Ago(s.At, *s.Kernel.LastSync)
}

// maxProblem is the length of a problem in a table, in runes.
const maxProblem = 80

// problem returns the first problem of a node.
func problem(s *api.Status, whole bool) string {
	all := slices.Concat(s.Failing, s.Degraded)
	if len(all) == 0 {
		return "-"
	}
	text := []rune(all[0].Text)
	if len(text) > maxProblem && !whole {
		text = append(text[:maxProblem-1], '…')
	}
	if more := len(all) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", string(text), more)
	}
	return string(text)
}
