package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func ipvsMode() Mode {
	return Mode{
		Name:         config.ModeIPVS,
		OutcomeNeeds: abi.NeedOutcomes, // IPVS counts open connections
		Caps:         ipvs.Caps,
		Open: func(cfg *config.Config, log *slog.Logger) (backend.Backend, error) {
			return ipvs.Open(ipvsOptions(cfg, log))
		},
		Init: func(cfg *config.Config, hostRoot string, log *slog.Logger) error {
			return ipvs.Prepare(ipvsOptions(cfg, log), hostRoot, log)
		},
		Probe: func(ctx context.Context) []probe.Finding {
			return slices.Concat(probeNFTables(ctx), ipvsFindings(ipvs.Probe(ctx))) // its rules are nftables rules
		},
		Sysctls: ipvsSysctls,
		Read: func(ctx context.Context) (*plan.Plan, error) {
			p, err := ipvs.Read(ctx, ipvs.Options{})
			if err == nil && len(p.Frontends) == 0 {
				err = errors.New("no virtual servers")
			}
			if err != nil {
				return nil, otherModeError{err}
			}
			return p, nil
		},
		Drain: func(ctx context.Context, cfg *config.Config, log *slog.Logger, force bool) (int, error) {
			remaining, err := ipvs.DrainAll(ctx, ipvsOptions(cfg, log), force)
			if errors.Is(err, ipvs.ErrNoIPVS) {
				return 0, nil
			}
			return remaining, err
		},
		Cleanup: func(ctx context.Context) ([]string, error) {
			return ipvs.Cleanup(ctx, ipvs.Options{Now: time.Now})
		},
		Gateways:     ipvs.Gateways,
		ServiceAddrs: func(cfg *config.Config) (map[netip.Addr]bool, error) { return ipvs.BoundVIPs(cfg.IPVS.Interface) },
		Stats: func(ctx context.Context, limit int) ([]backend.ServerStats, error) {
			stats, err := ipvs.ReadStats(ctx, limit)
			if errors.Is(err, ipvs.ErrNoIPVS) {
				return nil, nil
			}
			return stats, err
		},
	}
}

func ipvsOptions(cfg *config.Config, log *slog.Logger) ipvs.Options {
	c := &cfg.IPVS
	return ipvs.Options{
		Now: time.Now, Log: log, Link: c.Interface, Scheduler: c.Scheduler, StrictARP: c.StrictARP, ExcludeCIDRs: c.ExcludeCIDRs,
		MarkMask: uint32(c.MarkMask), Affinity: affinityLimits(cfg),
		TCPTimeout: c.TCPTimeout, TCPFinTimeout: c.TCPFinTimeout, UDPTimeout: c.UDPTimeout,
	}
}

const initRemedy = "sluice run --init-only with full rights on the host"

// ipvsFindings describes the result of ipvs.Probe.
func ipvsFindings(features []ipvs.Feature, err error) []probe.Finding {
	var out []probe.Finding
	for _, x := range features {
		f := probe.Finding{Group: groupKernel, Name: x.Name, Required: x.Required, State: probe.OK}
		if x.Err != nil {
			f.State, f.Found, f.Impact, f.Remedy = probe.Missing, x.Err.Error(), x.For, initRemedy+", or a kernel with it: "+x.Kernel
		}
		out = append(out, f)
	}
	if err != nil {
		out = append(out, probe.Finding{Group: groupKernel, Name: "the rest of IPVS", State: probe.Unknown, Found: err.Error(), Remedy: "run it with CAP_SYS_ADMIN and CAP_NET_ADMIN"})
	}
	return out
}

const groupIPVS = "IPVS"

func ipvsSysctls(h probe.Host, cfg *config.Config) []probe.Finding {
	var want []probe.Setting
	for _, s := range ipvs.Sysctls(ipvsOptions(cfg, slog.New(slog.DiscardHandler))) {
		want = append(want, probe.Setting{Name: s.Name, Want: s.Want, Impact: s.Impact})
	}
	return h.SettingFindings(groupIPVS, initRemedy, want)
}
