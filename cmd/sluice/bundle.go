package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/agent/state"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/printable"
)

// Limits of a bundle.
const (
	partTimeout = 30 * time.Second
	maxPart     = 16 << 20 // bytes of a part; the rest is cut
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
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "file to write, - for standard output (default: sluice-NODE-TIME.tar.gz in the working directory); it must not exist")
	cmd.Flags().BoolVar(&f.anonymize, "anonymize", false, "replace the names of Services, namespaces and Pods by hashes")
	cmd.Flags().StringVar(&f.config, "config", "", "configuration file for the check, if it is not to be the default configuration with the mode in use")
	registerSocket(cmd, &f.socket)
	return cmd
}

// part is an entry of a bundle.
type part struct {
	name string
	text []byte
	err  error
}

func (f *bundleFlags) run(ctx context.Context, stdout io.Writer) error {
	s, statusErr := state.OnSocket(f.socket).Status(ctx)
	parts, err := f.collect(ctx, s, statusErr)
	if err != nil {
		return err
	}
	if f.anonymize {
		if err := anonymize(parts); err != nil {
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
		if p.err != nil {
			warn(p.name + ": " + p.err.Error())
		}
	}
	_, err = fmt.Fprintln(stdout, printable.Escape(path))
	return err
}

// collect reads all parts, one after the other.
func (f *bundleFlags) collect(ctx context.Context, s *state.Status, statusErr error) (parts []part, err error) {
	add := func(name string, read func(context.Context) ([]byte, error)) {
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		text, err := read(ctx)
		if len(text) > maxPart {
			text = append(text[:maxPart:maxPart], fmt.Sprintf("\n# cut after %d bytes\n", maxPart)...)
		}
		parts = append(parts, part{name, text, err})
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
	add("status.json", func(context.Context) ([]byte, error) { return jsonText(s, statusErr) })
	add("drains.json", func(ctx context.Context) ([]byte, error) { return jsonText(state.OnSocket(f.socket).Drains(ctx)) })
	for _, r := range []struct{ name, resource string }{{"config.json", "/config"}, {"plan.txt", "/plan"}, {"metrics.txt", "/metrics"}} {
		add(r.name, func(ctx context.Context) ([]byte, error) {
			return state.OnSocket(f.socket).Text(ctx, r.resource, maxPart+1)
		})
	}
	add("log.txt", func(ctx context.Context) ([]byte, error) {
		x, err := state.OnSocket(f.socket).Log(ctx)
		if err != nil {
			return nil, err
		}
		return []byte(x.Lines), nil
	})
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

func jsonText[T any](x *T, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(x, "", "  ")
	return append(text, '\n'), err
}

// listTable returns sluice's own table of a family as nft prints it.
func listTable(ctx context.Context, family string) ([]byte, error) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("%w; kernel.txt has the same as sluice reads it", err)
	}
	out, errs := &limitedBuffer{max: maxPart + 1}, &limitedBuffer{max: 4096}
	cmd := exec.CommandContext(ctx, nft, "list", "table", family, "sluice")
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("nft list table %s sluice: %w: %s", family, err, strings.TrimSpace(errs.String()))
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

func writeBundle(w io.Writer, parts []part, now time.Time) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	entry := func(name string, text []byte) error {
		err := out.WriteHeader(&tar.Header{Name: "sluice-bundle/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: now})
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	for _, p := range parts {
		if p.err == nil || len(p.text) > 0 {
			if err := entry(p.name, p.text); err != nil {
				return err
			}
		}
		if p.err != nil {
			if err := entry(p.name+".error", []byte(p.err.Error()+"\n")); err != nil {
				return err
			}
		}
	}
	return errors.Join(out.Close(), zip.Close())
}
