package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

func thisHost() probe.Host { return probe.Host{CPUs: runtime.NumCPU()} }

// InitHost implements `sluice run --init-only`: it makes the settings that need full rights on the host. hostRoot is the
// root directory of the host, with its modprobe; "": this process's.
func InitHost(cfg *config.Config, hostRoot string, log *slog.Logger) error {
	err := setConntrack(thisHost(), cfg, log)
	if mode := dataplane.All().Get(cfg.Mode); mode.Init != nil {
		err = errors.Join(err, mode.Init(cfg, hostRoot, log))
	}
	return err
}

// configureHost applies the configured sysctls and this process's OOM score at each start. Failures are warnings, because
// sluice can forward without them.
func configureHost(cfg *config.Config, log *slog.Logger) {
	h := thisHost()
	setOOMScoreAdj(h, cfg, log)
	if err := setConntrack(h, cfg, log); err != nil {
		for _, e := range unjoin(err) {
			log.Warn("setting a sysctl failed", "err", e,
				"remedy", "run sluice run --init-only with full rights on the host, or configure 0 to keep the kernel's value")
		}
	}
}

// setOOMScoreAdj sets this process's OOM score. That it fails is a warning only if somebody has asked for the value.
func setOOMScoreAdj(h probe.Host, cfg *config.Config, log *slog.Logger) {
	if err := h.SetOOMScoreAdj(cfg.OOMScoreAdj); err != nil {
		level := slog.LevelDebug
		if cfg.OOMScoreAdjSet {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "setting oomScoreAdj failed", "err", err)
	}
}

// setConntrack sets the configured conntrack sysctls. The error joins those that could not be set.
func setConntrack(h probe.Host, cfg *config.Config, log *slog.Logger) error {
	settings := h.ConntrackSettings(probe.Conntrack(cfg.Conntrack))
	if len(settings) == 0 {
		return nil
	}
	if _, err := probe.ConntrackEntries(); err != nil { // the request loads the module that has the sysctls
		log.Debug("counting conntrack entries failed", "err", err)
	}
	var errs []error
	for _, s := range settings {
		old, changed, err := h.Set(s)
		switch {
		case err != nil && s.Optional:
			log.Debug("setting an optional sysctl failed", "err", err)
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %s", err, s.Impact))
		case changed:
			log.Info("set sysctl", "sysctl", s.Name, "from", old, "to", s.Want)
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
