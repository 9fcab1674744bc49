package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func nftablesMode() Mode {
	return Mode{
		Name:            config.ModeNFTables,
		NFTablesMetrics: true,
		OutcomeNeeds:    abi.NeedOutcomes | abi.NeedConnections,
		Caps:            nftables.Caps,
		Open: func(cfg *config.Config, log *slog.Logger) (backend.Backend, error) {
			return nftables.Open(nftables.Options{Now: time.Now, Log: log, Affinity: affinityLimits(cfg)})
		},
		Probe: probeNFTables,
		Read:  readNFTables,
		Cleanup: func(ctx context.Context) ([]string, error) {
			return nftables.Cleanup(ctx, 0)
		},
	}
}

func affinityLimits(cfg *config.Config) nftables.AffinityLimits {
	return nftables.AffinityLimits{Reserved: uint32(cfg.SessionAffinity.ReservedClients), Shared: uint32(cfg.SessionAffinity.SharedClients)}
}

// AffinityUsage reads how many clients with session affinity are recorded, in either mode.
func AffinityUsage(ctx context.Context) (nftables.AffinityUsage, error) {
	return nftables.ReadAffinityUsage(ctx, 0)
}

// LocalhostRefused reads how many packets to NodePorts at loopback addresses were refused because of their protocol, of IPv4 and
// IPv6, in either mode.
func LocalhostRefused(ctx context.Context) ([2]nftables.LocalhostRefused, error) {
	return nftables.ReadLocalhostRefused(ctx, 0)
}

// Retries reads how many refused connections are tried again, in either mode.
func Retries(ctx context.Context) (nftables.Retries, error) { return nftables.ReadRetries(ctx, 0) }

func readNFTables(ctx context.Context) (_ *plan.Plan, err error) {
	b, err := nftables.Open(nftables.Options{Now: time.Now})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	p, err := b.Read(ctx)
	if nftables.IsForeignTable(err) {
		err = otherModeError{err}
	}
	return p, err
}

const groupKernel = "kernel"

func probeNFTables(ctx context.Context) []probe.Finding { return nftablesFindings(nftables.Probe(ctx)) }

// nftablesFindings describes the result of nftables.Probe.
func nftablesFindings(features []nftables.Feature, own bool, err error) []probe.Finding {
	if err != nil {
		f := probe.Finding{Group: groupKernel, Name: "nf_tables", Required: true, State: probe.Missing, Found: err.Error(), Impact: "everything"}
		if errors.Is(err, unix.EPERM) {
			f.State, f.Impact, f.Remedy = probe.Unknown, "", "run sluice check with CAP_NET_ADMIN"
		}
		return []probe.Finding{f}
	}
	if len(features) > 0 && errors.Is(features[0].Err, unix.EPERM) {
		return nftablesFindings(nil, own, features[0].Err)
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
