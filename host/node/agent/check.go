package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/kubeproxy"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

const groupConfiguration = "configuration"

// Check compares this host with what a configuration needs: kernel features, capabilities, sysctls, conntrack, addresses.
// It changes nothing on the host.
func Check(ctx context.Context, cfg *config.Config) []probe.Finding {
	h := thisHost()
	modes := dataplane.All()
	mode := modes.Get(cfg.Mode)
	var own []probe.Finding // sysctls that the mode sets itself
	if mode.Sysctls != nil {
		own = mode.Sysctls(h, cfg)
	}
	others := slices.DeleteFunc(h.Sysctls(), func(f probe.Finding) bool {
		return slices.ContainsFunc(own, func(o probe.Finding) bool { return o.Name == f.Name })
	})
	var oomScoreAdj *int
	if cfg.OOMScoreAdjSet {
		oomScoreAdj = &cfg.OOMScoreAdj
	}
	return slices.Concat(
		h.Capabilities(oomScoreAdj),
		[]probe.Finding{probe.Kernel()},
		mode.Probe(ctx),
		own,
		h.Conntrack(probe.Conntrack(cfg.Conntrack), probe.ConntrackEntries),
		others,
		probe.Foreign(probe.ForeignChains()),
		kubeProxyFindings(ctx, cfg),
		configFindings(cfg, hostLinks(modes, cfg)),
	)
}

// kubeProxyFindings reports a running kube-proxy, and what one has left in the kernel.
func kubeProxyFindings(ctx context.Context, cfg *config.Config) []probe.Finding {
	f := probe.Finding{Group: "rules of other programs", Name: "kube-proxy", State: probe.OK}
	by, err := kubeproxy.Running(ctx, "/proc", kubeproxy.MetricsPort)
	left, ferr := kubeproxy.Find(ctx, kubeproxy.PortRange(cfg.NodePortRange))
	var found []string
	for _, l := range left {
		found = append(found, l.String())
	}
	switch err := errors.Join(err, ferr); {
	case by != "":
		f.State, f.Found, f.Impact = probe.Warning, "running: "+by, "sluice run does not start: only one Service proxy can run on a node"
		f.Remedy = "exclude it from this node: see the guide in deploy/README.md"
	case len(found) > 0:
		f.State, f.Found = probe.Warning, "it does not run, and has left "+strings.Join(found, "; ")
		f.Impact = "its rules may translate the addresses of Services first, to endpoints that may be gone"
		f.Remedy = "sluice run --cleanup-kube-proxy removes them after its first update; or sluice cleanup --kube-proxy"
	case err != nil:
		f.State, f.Found = probe.Unknown, err.Error()
	}
	return []probe.Finding{f}
}

// links are the network interfaces of a host.
type links struct {
	names []string
	addrs []netip.Addr // on any of them
	err   error        // why they could not be read
}

func hostLinks(modes dataplane.Modes, cfg *config.Config) links {
	var l links
	all, err := net.Interfaces()
	for _, i := range all {
		l.names = append(l.names, i.Name)
	}
	addrs, aerr := modes.LocalAddrs(cfg)
	l.addrs, l.err = addrs, errors.Join(err, aerr)
	return l
}

// configFindings reports what a configuration names and the host does not have.
func configFindings(cfg *config.Config, l links) []probe.Finding {
	var out []probe.Finding
	warn := func(name, found, impact string) {
		out = append(out, probe.Finding{Group: groupConfiguration, Name: name, State: probe.Warning, Found: found, Impact: impact})
	}
	for _, w := range cfg.Warnings() {
		name, text, _ := strings.Cut(w, ": ")
		warn(name, "", text)
	}
	if l.err != nil {
		return append(out, probe.Finding{Group: groupConfiguration, Name: "links", State: probe.Unknown, Found: l.err.Error()})
	}
	if a := cfg.BindAddress; a.IsValid() && !slices.Contains(l.addrs, a) {
		warn("bindAddress", a.String()+" is not assigned to any link of this host", "NodePorts do not answer on it until it is")
	}
	if b := cfg.DetectLocal.BridgeInterface; cfg.DetectLocalMode == config.BridgeInterface && !slices.Contains(l.names, b) {
		warn("detectLocal.bridgeInterface", "link "+b+" does not exist", "no source counts as a Pod until it does")
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		var prefixes []netip.Prefix
		for _, p := range cfg.NodePortAddresses.Prefixes {
			if model.FamilyOf(p.Addr()) == f && !p.Addr().IsLoopback() {
				prefixes = append(prefixes, p)
			}
		}
		matched := slices.ContainsFunc(l.addrs, func(a netip.Addr) bool {
			return !a.IsLoopback() && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		})
		if len(prefixes) > 0 && !matched {
			warn("nodePortAddresses", fmt.Sprintf("no address of this host is in %v", prefixes), fmt.Sprintf("NodePorts do not answer on any %s address", f))
		}
	}
	return out
}
