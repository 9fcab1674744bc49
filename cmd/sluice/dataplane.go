package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/probe"
)

// openBackend opens the data plane of the configuration's mode.
func openBackend(cfg *config.Config, log *slog.Logger) (backend.Backend, error) {
	if cfg.Mode == config.ModeIPVS {
		return ipvs.Open(ipvsOptions(cfg, log))
	}
	return nftables.Open(nftables.Options{Now: time.Now, Log: log})
}

func ipvsOptions(cfg *config.Config, log *slog.Logger) ipvs.Options {
	c := &cfg.IPVS
	return ipvs.Options{
		Now: time.Now, Log: log, Link: c.Interface, Scheduler: c.Scheduler, StrictARP: c.StrictARP, ExcludeCIDRs: c.ExcludeCIDRs,
		TCPTimeout: c.TCPTimeout, TCPFinTimeout: c.TCPFinTimeout, UDPTimeout: c.UDPTimeout,
	}
}

// capsOf are a mode's capabilities: the same without a kernel.
func capsOf(mode string) plan.Caps {
	if mode == config.ModeIPVS {
		return ipvs.Caps()
	}
	return nftables.Caps()
}

// readKernel reads what sluice holds in this kernel in whichever mode, by the rights that the caller has.
func readKernel(ctx context.Context) (_ *plan.Plan, err error) {
	b, err := nftables.Open(nftables.Options{Now: time.Now})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	p, err := b.Read(ctx)
	if !nftables.IsForeignTable(err) {
		return p, err
	}
	if p, ierr := ipvs.Read(ctx, ipvs.Options{}); ierr == nil && len(p.Frontends) > 0 {
		return p, nil
	}
	return nil, err
}

// dataPlane is the backend in use, and what an earlier one has left.
type dataPlane struct {
	log *slog.Logger

	mu       sync.Mutex
	backend  backend.Backend
	cfg      *config.Config
	retiring func() // ends looking after what mode ipvs has left; nil: nobody does
}

func openDataPlane(cfg *config.Config, log *slog.Logger) (*dataPlane, error) {
	b, err := openBackend(cfg, log)
	if err != nil {
		return nil, err
	}
	return &dataPlane{backend: b, cfg: cfg, log: log}, nil
}

// change has another backend take the place of the one in use. What that has programmed goes once the other one holds
// the plan: the tables forward until their successor does, and virtual servers stay for their connections.
func (d *dataPlane) change(ctx context.Context, e *engine.Engine, cfg *config.Config) error {
	d.stopRetiring() // they may be wanted again
	defer d.retire()
	to, err := openBackend(cfg, d.log)
	if err != nil {
		return err
	}
	from, err := e.Swap(ctx, to)
	if err != nil {
		return errors.Join(err, to.Close())
	}
	if err := from.Close(); err != nil {
		d.log.Warn("closing the data plane before", "err", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.backend, d.cfg = to, cfg
	return nil
}

// retire lets what an earlier backend in mode ipvs has programmed run out, unless that is the mode.
func (d *dataPlane) retire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cfg.Mode == config.ModeIPVS || d.retiring != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, cfg := make(chan struct{}), d.cfg
	go func() {
		defer close(ended)
		retireIPVS(ctx, cfg, d.log)
	}()
	d.retiring = func() { cancel(); <-ended }
}

func (d *dataPlane) stopRetiring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.retiring != nil {
		d.retiring()
		d.retiring = nil
	}
}

func (d *dataPlane) close() error {
	d.stopRetiring()
	return d.backend.Close()
}

// retireEvery is how often what mode ipvs has left is looked at, and how long it may last.
const (
	retireEvery = time.Minute
	retireBound = ipvs.DefaultDrainTimeout
)

// retireIPVS lets what an earlier run in mode ipvs has programmed run out: its connections end by themselves, or at the
// bound.
func retireIPVS(ctx context.Context, cfg *config.Config, log *slog.Logger) {
	begun, said := time.Now(), false
	for {
		left, err := ipvs.DrainAll(ctx, ipvsOptions(cfg, log), time.Since(begun) > retireBound)
		switch {
		case errors.Is(err, ipvs.ErrNoIPVS):
			return
		case err != nil && ctx.Err() == nil:
			log.Warn("what mode ipvs has left", "err", err)
		case err == nil && left == 0:
			if said {
				log.Info("the last of the IPVS virtual servers is gone")
			}
			return
		case !said:
			log.Info("IPVS virtual servers from before stay for their connections, and get no new ones", "servers", left, "until", begun.Add(retireBound))
			said = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retireEvery):
		}
	}
}

// ipvsFindings are what came of trying what mode ipvs uses, when that is the mode.
func ipvsFindings(ctx context.Context, cfg *config.Config) []probe.Finding {
	if cfg.Mode != config.ModeIPVS {
		return nil
	}
	features, err := ipvs.Probe(ctx)
	var out []probe.Finding
	for _, x := range features {
		f := probe.Finding{Group: groupKernel, Name: x.Name, Required: x.Required, State: probe.OK}
		if x.Err != nil {
			f.State, f.Found, f.Impact = probe.Missing, x.Err.Error(), x.For
			f.Remedy = "sluice run --init-only with full rights on the host, or a kernel with it: " + x.Kernel
		}
		out = append(out, f)
	}
	if err != nil {
		out = append(out, probe.Finding{Group: groupKernel, Name: "the rest of IPVS", State: probe.Unknown, Found: err.Error(), Remedy: "run it with CAP_SYS_ADMIN and CAP_NET_ADMIN"})
	}
	return out
}

// ipvsSettings are the settings that mode ipvs makes.
func ipvsSettings(cfg *config.Config) (out []probe.Setting) {
	if cfg.Mode != config.ModeIPVS {
		return nil
	}
	for _, s := range ipvs.Sysctls(ipvsOptions(cfg, slog.Default())) {
		out = append(out, probe.Setting{Name: s.Name, Want: s.Want, Impact: s.Impact})
	}
	return out
}

// localAddrs are the addresses on this host's links, but for those that mode ipvs has put on one of them.
func localAddrs(link string) ([]netip.Addr, error) {
	vips, err := ipvs.BoundVIPs(link)
	if err != nil {
		return nil, fmt.Errorf("this host's addresses: %w", err)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("this host's addresses: %w", err)
	}
	after, err := ipvs.BoundVIPs(link) // some may have come meanwhile
	if err != nil {
		return nil, fmt.Errorf("this host's addresses: %w", err)
	}
	maps.Copy(vips, after)
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !vips[ip.Unmap()] {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
