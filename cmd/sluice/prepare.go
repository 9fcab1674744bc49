package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/probe"
)

// newLogger logs to standard error, as the configuration says; verbosity is that of the command line.
func newLogger(cfg *config.Config, verbosity int) *slog.Logger {
	options := &slog.HandlerOptions{}
	if max(verbosity, cfg.Logging.Verbosity) > 0 {
		options.Level = slog.LevelDebug
	}
	if cfg.Logging.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

func thisHost() probe.Host { return probe.Host{CPUs: runtime.NumCPU()} }

// initialize is sluice run --init-only.
func (f *runFlags) initialize() error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	log := newLogger(cfg, f.verbosity)
	err = setConntrack(thisHost(), cfg, log)
	if cfg.Mode == config.ModeIPVS {
		err = errors.Join(err, ipvs.Prepare(ipvsOptions(cfg, log), log))
	}
	return err
}

// prepare does at each start what --init-only does, and what is about this process. What it may not do is a warning:
// sluice forwards without.
func prepare(cfg *config.Config, log *slog.Logger) {
	h := thisHost()
	if err := h.SetOOMScoreAdj(cfg.OOMScoreAdj); err != nil {
		log.Warn("oomScoreAdj", "err", err)
	}
	if err := setConntrack(h, cfg, log); err != nil {
		for _, e := range unjoin(err) {
			log.Warn("a kernel setting is not as configured", "err", e,
				"do", "sluice run --init-only with full rights on the host, or 0 in the configuration to leave it alone")
		}
	}
}

// setConntrack brings the settings of the connection table to what is configured. The error joins what could not be.
func setConntrack(h probe.Host, cfg *config.Config, log *slog.Logger) error {
	settings := h.ConntrackSettings(probe.Conntrack(cfg.Conntrack))
	if len(settings) == 0 {
		return nil
	}
	if _, err := probe.ConntrackEntries(); err != nil { // asking loads the module that has the settings
		log.Debug("the connection table cannot be asked", "err", err)
	}
	var errs []error
	for _, s := range settings {
		was, changed, err := h.Set(s)
		switch {
		case err != nil && s.Optional:
			log.Debug("a kernel setting that does not matter much is not as configured", "err", err)
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %s", err, s.Impact))
		case changed:
			log.Info("kernel setting changed", "setting", s.Name, "was", was, "is", s.Want)
		}
	}
	return errors.Join(errs...)
}

func unjoin(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	return []error{err}
}

// followLocalAddrs reads the addresses on this host's links from time to time, as NodePorts may be wanted on all of
// them. It ends with ctx.
func (p *proxy) followLocalAddrs(ctx context.Context) {
	tick := time.NewTicker(p.cfg.SyncPeriod)
	defer tick.Stop()
	for last := p.local; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := localAddrs(p.seen.config.Load().IPVS.Interface)
		if err != nil {
			p.log.Warn("reading this host's addresses", "err", err)
			continue
		}
		if slices.Equal(now, last) {
			continue
		}
		if err := p.engine.Do(ctx, func(pl *planner.Planner) { pl.SetLocalAddrs(now) }); err != nil {
			return // the engine ends
		}
		last = now
		p.log.Debug("this host's addresses have changed", "addresses", now)
	}
}
