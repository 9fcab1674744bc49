package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/config"
	hosttest "github.com/sluice-proxy/sluice/host/plugintest"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/printable"
	"github.com/sluice-proxy/sluice/host/safefile"
	"github.com/sluice-proxy/sluice/host/wasm"
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/plugintest"
)

// scenarioTimeout bounds the time that a scenario takes, whatever module and file are.
const scenarioTimeout = 2 * time.Minute

func newPluginTestCommand() *cobra.Command {
	t := pluginTest{}
	cmd := &cobra.Command{
		Use:   "test --module FILE SCENARIO…",
		Short: "Run scenarios of a plugin over virtual time",
		Long: `Runs a WebAssembly module in the sandbox through scenarios: text files with a Service, its endpoints, settings of the plugin and a
timeline. The proxy's own planner calls the plugin, in virtual time: on changes, and when the plugin has asked for it. State is carried from decision to
decision. What a scenario prints, shares of endpoints and reasons, must be what the file expects below the statement, in lines that begin with '>'.
sdk/scenario/README.md has the format. sdktest.RunScenario runs the same files natively, under 'go test'.

The exit code is 1 if a scenario prints something else, or cannot be run.`,
		Example: `  sluice plugin test --module bin/plugins/staged-drain.wasm plugins/staged-drain/testdata/*.scenario
  sluice plugin test --module hello.wasm --update hello.scenario`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("plugin test: missing argument: a scenario")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if t.module == "" {
				return usageError{errors.New("plugin test: missing flag: --module FILE")}
			}
			t.out = cmd.OutOrStdout()
			if t.log = slog.New(slog.DiscardHandler); t.verbose {
				t.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			return t.run(cmd.Context(), args)
		},
	}
	cmd.Flags().StringVar(&t.module, "module", "", "WebAssembly module of the plugin")
	cmd.Flags().BoolVarP(&t.update, "update", "u", false, "rewrite the expected lines of the scenarios")
	cmd.Flags().BoolVarP(&t.verbose, "verbose", "v", false, "print what the plugin logs, on standard error")
	return cmd
}

// pluginTest is an execution of plugin test.
type pluginTest struct {
	module          string
	update, verbose bool
	out             io.Writer
	log             *slog.Logger
}

func (t *pluginTest) run(ctx context.Context, files []string) (err error) {
	module, err := safefile.Read(t.module, plugins.MaxModule)
	if err != nil {
		return fmt.Errorf("plugin test: %w", err)
	}
	host, err := wasm.New(ctx, wasm.Options{CacheDir: plugins.UserCacheDir(), Compiler: compileCommand, Log: t.log, Now: time.Now, Missing: missingEverywhere()})
	if err != nil {
		return fmt.Errorf("plugin test: %w", err)
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	plugin, err := host.Open(ctx, t.module, module, wasm.LoadOptions{})
	if err != nil {
		return config.PrefixErrors("plugin test: "+t.module, err)
	}
	load := loaderOf(ctx, plugin)
	failed := 0
	for _, file := range files {
		begin := time.Now()
		result, err := t.runFile(ctx, file, load)
		lines := []string{fmt.Sprintf("ok    %s  %.2fs", file, time.Since(begin).Seconds())}
		switch differs := result.Err(); {
		case err != nil:
			lines = printable.Lines(err)
		case differs != nil && !t.update:
			lines = strings.Split(differs.Error(), "\n")
		}
		for _, line := range lines {
			fmt.Fprintln(t.out, printable.Escape(line))
		}
		if err != nil || result.Err() != nil && !t.update {
			failed++
			fmt.Fprintf(t.out, "FAIL  %s  %.2fs\n", printable.Escape(file), time.Since(begin).Seconds())
		}
	}
	if failed > 0 {
		return fmt.Errorf("plugin test: %d of %d scenarios failed", failed, len(files))
	}
	return nil
}

// runFile runs a scenario, and rewrites it if that is asked for.
func (t *pluginTest) runFile(ctx context.Context, file string, load hosttest.Loader) (*plugintest.Result, error) {
	text, err := safefile.Read(file, scenario.MaxSize)
	if err != nil {
		return nil, err
	}
	f, err := scenario.Parse(file, text)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(scenarioTimeout)
	result, err := plugintest.Run(f, hosttest.New(load), func() error {
		if time.Now().After(deadline) {
			return fmt.Errorf("the scenario takes longer than %s", scenarioTimeout)
		}
		return ctx.Err()
	})
	if err != nil || !t.update || result.Err() == nil {
		return result, err
	}
	return result, os.WriteFile(file, result.Format(), 0o644)
}

// loaderOf returns a Loader of a plugin, which tests the plugin once with each settings.
func loaderOf(ctx context.Context, plugin *wasm.Plugin) hosttest.Loader {
	checked := map[string]bool{}
	return func(settings string) (policy.Plugin, error) {
		plugin.Reset()
		if !checked[settings] {
			if _, err := plugin.Check(ctx, settings); err != nil {
				return nil, err
			}
			checked[settings] = true
		}
		return plugin, nil
	}
}
