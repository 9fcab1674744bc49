package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// newLogger returns the logger of run, whose level and last lines are those of logs.
func newLogger(to io.Writer, cfg *config.Config, logs *agent.Logs) *slog.Logger {
	logs.Configure(cfg)
	to = io.MultiWriter(logs, to)
	if cfg.Logging.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: logs.Level(), ReplaceAttr: durationsInSeconds}))
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: logs.Level()}))
}

// durationsInSeconds makes durations numbers of seconds: in JSON, slog prints nanoseconds.
func durationsInSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// warningsLogger prints warnings and errors.
func warningsLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func newLogLevelCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Print or set the level of the running sluice's log",
		Long: `Prints the level of the log of the sluice that is running on this node, or sets it. It stays until the next restart, or until
logging.verbosity of the configuration changes.`,
		Example: "  sluice log-level\n  sluice log-level debug",
		Args:    atMostOneArg("level"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				s, err := stateclient.OnSocket(socket).Status(cmd.Context())
				if err != nil {
					return notRunning(err)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), s.LogLevel)
				return err
			}
			var level slog.Level
			if err := level.UnmarshalText([]byte(args[0])); err != nil {
				return usageError{fmt.Errorf("log-level %q: must be debug, info, warn or error", args[0])}
			}
			return notRunning(stateclient.OnSocket(socket).SetLogLevel(cmd.Context(), level))
		},
	}
	registerSocket(cmd, &socket)
	return cmd
}
