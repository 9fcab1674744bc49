package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/bundle"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

type bundleFlags struct {
	config, socket, file string
	anonymize            bool
}

func newBundleCommand() *cobra.Command {
	var f bundleFlags
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write a tar.gz for a bug report",
		Long: `Writes a tar.gz with the status, drains, plan, effective configuration, metrics and last log lines of the sluice that is running
on this node, what is programmed in the kernel, and the result of 'sluice check'. It changes nothing. A part that cannot be
read is an entry PART.error that says why; so the command also works while sluice is down.

It has no keys, tokens or contents of kubeconfig files. With --anonymize, the names of Services, namespaces and Pods are
replaced by hashes, the same ones in all parts; addresses, node names and policies stay.`,
		Example: "  sluice bundle\n  sluice bundle --anonymize -f report.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.file == "-" {
				return f.run(cmd.Context(), archives)
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "file to write, - for standard output (default: sluice-NODE-TIME.tar.gz in the working directory); it must not exist")
	cmd.Flags().BoolVar(&f.anonymize, "anonymize", false, "replace the names of Services, namespaces and Pods by hashes")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration file for the check, if it is not to be the default configuration with the mode in use")
	registerSocket(cmd, &f.socket)
	return cmd
}

func (f *bundleFlags) run(ctx context.Context, stdout io.Writer) error {
	s, statusErr := stateclient.OnSocket(f.socket).Status(ctx)
	parts, err := f.collect(ctx, s, statusErr)
	if err != nil {
		return err
	}
	if f.anonymize {
		if err := bundle.Anonymize(parts); err != nil {
			return err
		}
	}
	now, node := time.Now().UTC(), "node"
	if s != nil {
		node = s.Node
	} else if name, err := os.Hostname(); err == nil {
		node = name
	}
	if f.file == "-" {
		return writeBundle(stdout, parts, now)
	}
	path := f.file
	if path == "" {
		path = "sluice-" + filepath.Base(node) + "-" + now.Format("20060102T150405Z") + ".tar.gz"
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(writeBundle(file, parts, now), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	for _, p := range parts {
		if p.Err != nil {
			warn(p.Name + ": " + p.Err.Error())
		}
	}
	_, err = fmt.Fprintln(stdout, printable.Escape(path))
	return err
}

// collect reads all parts, one after the other.
func (f *bundleFlags) collect(ctx context.Context, s *api.Status, statusErr error) (parts []bundle.Part, err error) {
	add := func(name string, read func(context.Context) ([]byte, error)) {
		parts = append(parts, bundle.Read(ctx, name, read))
	}
	cfg := config.Default()
	if f.config != "" {
		if cfg, err = config.Load(f.config); err != nil {
			return nil, err
		}
	} else if s != nil {
		cfg.Mode = s.Mode
	}
	add("version.txt", func(context.Context) ([]byte, error) { return []byte(versionText() + "\n"), nil })
	add("status.json", func(context.Context) ([]byte, error) { return bundle.JSON(s, statusErr) })
	parts = append(parts, bundle.OfAgent(ctx, stateclient.OnSocket(f.socket))...)
	add("kernel.txt", func(ctx context.Context) ([]byte, error) {
		programmed, err := dataplane.All().Read(ctx)
		if err != nil {
			return nil, err
		}
		return []byte(plan.Format(programmed)), nil
	})
	for _, family := range []string{"ip", "ip6"} {
		add("nft-"+family+".txt", func(ctx context.Context) ([]byte, error) { return listTable(ctx, family) })
	}
	add("check.txt", func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		err := printFindings(&out, agent.Check(ctx, cfg))
		return out.Bytes(), err
	})
	return parts, ctx.Err()
}

// listTable returns sluice's own table of a family as nft prints it.
func listTable(ctx context.Context, family string) ([]byte, error) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("%w; kernel.txt has the same as sluice reads it", err)
	}
	out, errs := &limitedBuffer{max: bundle.MaxPart + 1}, &limitedBuffer{max: 4096}
	cmd := exec.CommandContext(ctx, nft, "list", "table", family, "sluice")
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Run(); err != nil {
		reason, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n") // without the command that nft repeats
		return out.Bytes(), fmt.Errorf("nft list table %s sluice: %w: %s", family, err, reason)
	}
	return out.Bytes(), nil
}

// limitedBuffer keeps the first bytes that are written to it.
type limitedBuffer struct {
	bytes.Buffer
	max int
}

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := b.max - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

func writeBundle(w io.Writer, parts []bundle.Part, now time.Time) error {
	out := bundle.NewWriter(w, now)
	return errors.Join(out.Add("", parts), out.Close())
}
