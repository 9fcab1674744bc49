package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/bundle"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// maxBundled bounds the nodes of a bundle; a node is up to six parts of bundle.MaxPart in memory.
const maxBundled = 20

func newBundleCommand(o *options) *cobra.Command {
	var file string
	var anonymize bool
	cmd := &cobra.Command{
		Use:   "bundle [NODE...]",
		Short: "Write a tar.gz for a bug report",
		Long: fmt.Sprintf(`Writes a tar.gz with a folder for each node: status, drains, effective configuration, plan, metrics and last log lines of its sluice. What
cannot be read is an entry PART.error that says why. A node's kernel is only in the bundle that 'sluice bundle' writes there.

It has no keys or tokens. With --anonymize, the names of Services, namespaces and Pods are replaced by hashes, the same ones in all
parts. Without a NODE it is about all, if there are at most %d.`, maxBundled),
		Example: "  kubectl sluice bundle\n  kubectl sluice bundle node-a1 node-b1 --anonymize -f report.tar.gz",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.cluster()
			if err != nil {
				return err
			}
			all, err := c.selected(cmd.Context(), args)
			if err != nil {
				return err
			}
			if len(all) > maxBundled {
				return usageError{fmt.Errorf("%d nodes: at most %d; name those that matter", len(all), maxBundled)}
			}
			nodes, err := c.bundle(cmd.Context(), all)
			if err != nil {
				return err
			}
			if anonymize {
				if err := anonymizeAll(nodes); err != nil {
					return err
				}
			}
			now := time.Now().UTC()
			if file == "-" {
				return writeNodes(os.Stdout, all, nodes, now) // an archive is no text
			}
			path := file
			if path == "" {
				path = "sluice-" + now.Format("20060102T150405Z") + ".tar.gz"
			}
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			if err := errors.Join(writeNodes(f, all, nodes, now), f.Close()); err != nil {
				return errors.Join(err, os.Remove(path))
			}
			for i, parts := range nodes {
				for _, p := range parts {
					if p.Err != nil {
						fmt.Fprintln(cmd.ErrOrStderr(), printable.Escape("warning: node "+all[i].node+": "+p.Name+": "+p.Err.Error()))
					}
				}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), printable.Escape(path))
			return err
		},
	}
	cmd.ValidArgsFunction = o.completeNodes
	cmd.Flags().StringVarP(&file, "file", "f", "", "file to write, - for standard output (default: sluice-TIME.tar.gz in the working directory); it must not exist")
	cmd.Flags().BoolVar(&anonymize, "anonymize", false, "replace the names of Services, namespaces and Pods by hashes")
	return cmd
}

// bundle reads the parts of each agent.
func (c *cluster) bundle(ctx context.Context, all []*agent) ([][]bundle.Part, error) {
	nodes := make([][]bundle.Part, len(all))
	errs := askAll(ctx, all, func(ctx context.Context, i int, client *stateclient.Client) error {
		nodes[i] = append([]bundle.Part{bundle.Read(ctx, "status.json", func(ctx context.Context) ([]byte, error) { return bundle.JSON(client.Status(ctx)) })},
			bundle.OfAgent(ctx, client)...)
		return nil
	})
	for i, err := range errs {
		if err != nil {
			nodes[i] = []bundle.Part{{Name: "status.json", Err: err}}
		}
	}
	return nodes, ctx.Err()
}

// anonymizeAll anonymizes the parts of all nodes with the same hashes.
func anonymizeAll(nodes [][]bundle.Part) error {
	var flat []bundle.Part
	for _, parts := range nodes {
		flat = append(flat, parts...)
	}
	if err := bundle.Anonymize(flat); err != nil {
		return err
	}
	for i := range nodes {
		n := copy(nodes[i], flat)
		flat = flat[n:]
	}
	return nil
}

func writeNodes(w io.Writer, all []*agent, nodes [][]bundle.Part, now time.Time) error {
	out := bundle.NewWriter(w, now)
	for i, a := range all {
		if err := out.Add(filepath.Base(a.node), nodes[i]); err != nil {
			return err
		}
	}
	return out.Close()
}
