package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/probe"
)

const (
	groupKernel        = "kernel"
	groupIPVS          = "IPVS"
	groupConfiguration = "configuration"
)

func newCheckCommand() *cobra.Command {
	var path, output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether sluice can work on this host, and what is missing",
		Long: `Tries the kernel features that the ruleset uses, looks at capabilities, kernel settings and the connection table,
and holds the configuration against this host. For all that is missing it says which feature of sluice that costs.
Nothing on the host is changed: the features are tried in a network namespace of their own, or, without the right to
make one, in transactions that the kernel takes back. The exit code is 1 when something is missing that sluice does
not work without.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			in := inputFlags{config: path}
			cfg, err := in.load()
			if err != nil {
				return err
			}
			findings := findings(cmd.Context(), cfg)
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(struct {
					OK       bool            `json:"ok"`
					Findings []probe.Finding `json:"findings"`
				}{!probe.RequiredMissing(findings), findings})
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && probe.RequiredMissing(findings) {
				err = errors.New("something is missing that sluice does not work without")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (SluiceConfiguration)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func findings(ctx context.Context, cfg *config.Config) []probe.Finding {
	h := thisHost()
	own := h.SettingFindings(groupIPVS, "sluice run --init-only with full rights on the host", ipvsSettings(cfg))
	// In mode ipvs one of them is no longer another's to make.
	others := slices.DeleteFunc(h.Sysctls(), func(f probe.Finding) bool {
		return slices.ContainsFunc(own, func(o probe.Finding) bool { return o.Name == f.Name })
	})
	return slices.Concat(
		h.Capabilities(cfg.OOMScoreAdj),
		kernelFindings(nftables.Probe(ctx)),
		ipvsFindings(ctx, cfg),
		own,
		h.Conntrack(probe.Conntrack(cfg.Conntrack), probe.ConntrackEntries),
		others,
		configFindings(cfg, hostLinks()),
	)
}

// kernelFindings are what came of trying the features of nf_tables.
func kernelFindings(features []nftables.Feature, own bool, err error) []probe.Finding {
	if err != nil {
		f := probe.Finding{Group: groupKernel, Name: "nf_tables", Required: true, State: probe.Missing, Found: err.Error(), Impact: "everything"}
		if errors.Is(err, unix.EPERM) {
			f.State, f.Impact, f.Remedy = probe.Unknown, "", "run it with CAP_NET_ADMIN"
		}
		return []probe.Finding{f}
	}
	if len(features) > 0 && errors.Is(features[0].Err, unix.EPERM) {
		return kernelFindings(nil, own, features[0].Err)
	}
	var out []probe.Finding
	for _, x := range features {
		f := probe.Finding{Group: groupKernel, Name: x.Name, Required: x.Required, State: probe.OK}
		switch {
		case errors.Is(x.Err, nftables.ErrNotTried):
			f.State, f.Found = probe.Unknown, x.Err.Error()
		case x.Err != nil:
			f.State, f.Found, f.Impact, f.Remedy = probe.Missing, x.Err.Error(), x.For, "a kernel with it: "+x.Kernel
		}
		out = append(out, f)
	}
	return out
}

// links are what a host has of them: their names, and the addresses on them; err when nobody knows.
type links struct {
	names []string
	addrs []netip.Addr
	err   error
}

func hostLinks() links {
	var l links
	all, err := net.Interfaces()
	for _, i := range all {
		l.names = append(l.names, i.Name)
	}
	addrs, aerr := localAddrs("")
	l.addrs, l.err = addrs, errors.Join(err, aerr)
	return l
}

// configFindings holds a configuration against the host's links.
func configFindings(cfg *config.Config, l links) []probe.Finding {
	var out []probe.Finding
	warn := func(name, found, costs, remedy string) {
		out = append(out, probe.Finding{Group: groupConfiguration, Name: name, State: probe.Warning, Found: found, Impact: costs, Remedy: remedy})
	}
	for _, w := range cfg.Warnings() {
		name, text, _ := strings.Cut(w, ": ")
		warn(name, "", text, "")
	}
	if l.err != nil {
		return append(out, probe.Finding{Group: groupConfiguration, Name: "links", State: probe.Unknown, Found: l.err.Error()})
	}
	if a := cfg.BindAddress; a.IsValid() && !slices.Contains(l.addrs, a) {
		warn("bindAddress", a.String()+" is on no link of this host", "NodePorts answer on it only once it is there", "")
	}
	if b := cfg.DetectLocal.BridgeInterface; cfg.DetectLocalMode == config.BridgeInterface && !slices.Contains(l.names, b) {
		warn("detectLocal.bridgeInterface", "no link "+b, "no source counts as a Pod until it is there", "")
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		var of []netip.Prefix
		for _, p := range cfg.NodePortAddresses {
			if model.FamilyOf(p.Addr()) == f {
				of = append(of, p)
			}
		}
		hit := slices.ContainsFunc(l.addrs, func(a netip.Addr) bool {
			return !a.IsLoopback() && slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Contains(a) })
		})
		if len(of) > 0 && !hit {
			warn("nodePortAddresses", fmt.Sprintf("no address of this host is in %v", of), fmt.Sprintf("NodePorts answer on no %s address", f), "")
		}
	}
	return out
}

// printFindings is for people: a line for what is there, more for what is not.
func printFindings(w io.Writer, findings []probe.Finding) error {
	var b strings.Builder
	group := ""
	for _, f := range findings {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "%s\n", group)
		}
		line := fmt.Sprintf("  %-8s  %s", f.State, f.Name)
		if f.State == probe.Missing && f.Required {
			line += " (required)"
		}
		if f.Found != "" {
			line += ": " + f.Found
		}
		fmt.Fprintln(&b, line)
		for _, more := range []struct{ label, text string }{{"costs", f.Impact}, {"do", f.Remedy}} {
			if more.text != "" {
				fmt.Fprintf(&b, "            %s: %s\n", more.label, more.text)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
