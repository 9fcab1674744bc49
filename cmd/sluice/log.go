package main

import (
	"log/slog"
	"os"

	"github.com/sluice-proxy/sluice/host/config"
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
