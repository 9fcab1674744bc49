package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// revision returns a hash of the policies in force on a node, "-" if there are none.
func revision(s *api.Status) string {
	if len(s.Policies) == 0 {
		return "-"
	}
	h := sha256.New()
	for _, p := range s.Policies {
		fmt.Fprintf(h, "%q %q\n", p.Name, p.Revision)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// InForce is a revision of a policy or the module of a plugin, and the nodes where it is in force.
type InForce struct {
	Kind     string   `json:"kind"` // policy, plugin, or object: a policy that is an object and not in force
	Name     string   `json:"name"`
	Revision string   `json:"revision,omitempty"` // of a policy; digest of a module. "": none is in force
	Error    string   `json:"error,omitempty"`    // why that of the configuration is not in force
	Nodes    []string `json:"nodes"`
}

// Policies are the policies and plugins of a cluster.
type Policies struct {
	InForce []InForce    `json:"inForce"`
	Nodes   int          `json:"nodes"`            // that have answered
	Silent  []NodeStatus `json:"silent,omitempty"` // those that have not
}

func newPoliciesCommand(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "policies [NODE...]",
		Short: "Show which revisions of policies and plugins are in force, and where",
		Long: `Prints for each policy and plugin which revision is in force on how many nodes. A second line of the same name means that nodes
differ; a plugin that failed to load is shown with the reason, and so is a policy that is an object and not in force. -o wide names the nodes.`,
		Example: "  kubectl sluice policies\n  kubectl sluice policies -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.cluster()
			if err != nil {
				return err
			}
			list, err := c.statuses(cmd.Context(), args)
			if err != nil {
				return err
			}
			return printPolicies(cmd.OutOrStdout(), newPolicies(list), out)
		},
	}
	cmd.ValidArgsFunction = o.completeNodes
	out.register(cmd, "wide", "name")
	return cmd
}

func newPolicies(list *NodeStatuses) *Policies {
	out := &Policies{InForce: []InForce{}}
	index := map[[4]string]int{}
	add := func(node, kind, name, revision, err string) {
		key := [4]string{kind, name, revision, err}
		i, ok := index[key]
		if !ok {
			i = len(out.InForce)
			index[key] = i
			out.InForce = append(out.InForce, InForce{Kind: kind, Name: name, Revision: revision, Error: err})
		}
		out.InForce[i].Nodes = append(out.InForce[i].Nodes, node)
	}
	for i := range list.Nodes {
		n := &list.Nodes[i]
		if n.Status == nil {
			out.Silent = append(out.Silent, *n)
			continue
		}
		out.Nodes++
		for _, p := range n.Status.Policies {
			add(n.Node, "policy", p.Name, p.Revision, "")
		}
		for _, p := range n.Status.Plugins {
			add(n.Node, "plugin", p.Name, p.Digest, p.Error)
		}
		for i := 0; n.Status.Objects != nil && i < len(n.Status.Objects.NotInForce); i++ {
			o := &n.Status.Objects.NotInForce[i]
			name := o.Kind + "/" + o.Name
			if o.Namespace != "" {
				name = o.Kind + "/" + o.Namespace + "/" + o.Name
			}
			add(n.Node, "object", name, "", o.Reason+": "+o.Message)
		}
	}
	slices.SortStableFunc(out.InForce, func(a, b InForce) int {
		if c := strings.Compare(b.Kind, a.Kind); c != 0 { // policies first
			return c
		}
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return len(b.Nodes) - len(a.Nodes)
	})
	return out
}

func printPolicies(w io.Writer, p *Policies, out output) error {
	if out.structured() {
		return printer.Object(w, string(out), p)
	}
	p = printable.Strings(p)
	if out == "name" {
		for _, f := range p.InForce {
			fmt.Fprintf(w, "%s/%s\n", f.Kind, f.Name)
		}
		return nil
	}
	if len(p.InForce) == 0 {
		fmt.Fprintln(w, "No policies: the default rules decide.")
	} else {
		tw := printer.NewTable(w)
		fmt.Fprintln(tw, "KIND\tNAME\tREVISION\tNODES\tPROBLEM")
		for i := range p.InForce {
			f := &p.InForce[i]
			nodes := fmt.Sprintf("%d of %d", len(f.Nodes), p.Nodes)
			if out == "wide" {
				nodes += ": " + strings.Join(f.Nodes, " ")
			}
			revision, problem := f.Revision, f.Error
			if revision == "" {
				revision = "none"
			}
			if out != "wide" {
				revision, problem = shorten(strings.TrimPrefix(revision, "sha256:"), 16), shorten(problem, maxProblem)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", f.Kind, f.Name, revision, nodes, dash(problem))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	for i := range p.Silent {
		fmt.Fprintf(w, "node %s: %s\n", p.Silent[i].Node, p.Silent[i].Error)
	}
	return nil
}

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
