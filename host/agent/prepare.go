package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/probe"
)

func thisHost() probe.Host { return probe.Host{CPUs: runtime.NumCPU()} }

// InitHost is `sluice run --init-only`: it sets what takes full rights on the host.
func InitHost(cfg *config.Config, log *slog.Logger) error {
	err := setConntrack(thisHost(), cfg, log)
	if mode := dataplane.All().Get(cfg.Mode); mode.Init != nil {
		err = errors.Join(err, mode.Init(cfg, log))
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
