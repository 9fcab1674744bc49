package main

import (
	"log/slog"
	"os"

	"github.com/sluice-proxy/sluice/host/config"
)

// newLogger returns the logger of run. verbosity is that of the command line.
func newLogger(cfg *config.Config, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if max(verbosity, cfg.Logging.Verbosity) > 0 {
		level = slog.LevelDebug
	}
	if cfg.Logging.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	}
	return stderrLogger(level)
}

func stderrLogger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
