package main

import (
	"io"
	"log/slog"

	"github.com/sluice-proxy/sluice/host/config"
)

// newLogger returns the logger of run. verbosity is that of the command line.
func newLogger(to io.Writer, cfg *config.Config, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if max(verbosity, cfg.Logging.Verbosity) > 0 {
		level = slog.LevelDebug
	}
	if cfg.Logging.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
}

func stderrLogger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
}
