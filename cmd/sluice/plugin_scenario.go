package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/plugintest"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// scenarioTimeout bounds the time that a scenario takes, whatever module and file are.
const scenarioTimeout = 2 * time.Minute

func newPluginTestCommand() *cobra.Command {
	t := pluginTest{}
	cmd := &cobra.Command{
		Use:   "test --module [NAME=]FILE… SCENARIO…",
		Short: "Run scenarios of a plugin over virtual time",
		Long: `Runs a WebAssembly module in the sandbox through scenarios: text files with a Service, its endpoints, settings of the plugin and a
timeline. The proxy's own planner calls the plugin, in virtual time: on changes, and when the plugin has asked for it. State is carried from decision to
decision. With several modules, a scenario says in a line 'chain NAME…' which of them make up the policy, in which order. What a scenario prints, shares of endpoints and reasons, must be what the file expects below the statement, in lines that begin with '>'.
sdk/scenario/README.md has the format. sdktest.RunScenario runs the same files natively, under 'go test'.

The exit code is 1 if a scenario prints something else, or cannot be run.`,
		Example: `  sluice plugin test --module bin/plugins/lifecycle.wasm plugins/lifecycle/testdata/*.scenario
  sluice plugin test --module hello.wasm --update hello.scenario
  sluice plugin test --module bin/plugins/locality.wasm --module mine=hello.wasm chain.scenario`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("plugin test: missing argument: a scenario")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(t.modules) == 0 {
				return usageError{errors.New("plugin test: missing flag: --module FILE")}
			}
			if err := t.nameModules(); err != nil {
				return usageError{err}
			}
			t.out = cmd.OutOrStdout()
			if t.log = slog.New(slog.DiscardHandler); t.verbose {
				t.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			return t.run(cmd.Context(), args)
		},
	}
	cmd.Flags().StringArrayVar(&t.modules, "module", nil, "WebAssembly module of the plugin; for chains repeated, with NAME= before it or named like the file")
	cmd.Flags().BoolVarP(&t.update, "update", "u", false, "rewrite the expected lines of the scenarios")
	cmd.Flags().BoolVarP(&t.verbose, "verbose", "v", false, "print what the plugin logs, on standard error")
	return cmd
}

// pluginTest is an execution of plugin test.
type pluginTest struct {
	modules         []string // of the flags
	names           []string // parallel to modules, whose names are cut off
	update, verbose bool
	out             io.Writer
	log             *slog.Logger
}

func (t *pluginTest) run(ctx context.Context, files []string) (err error) {
	host, err := wasm.New(ctx, wasm.Options{
		CacheDir: plugins.UserCacheDir(), Compiler: compileCommand, Process: processCommand, Log: t.log, Now: time.Now, Missing: missingEverywhere(), Limits: wasm.OfflineLimits(),
	})
	if err != nil {
		return fmt.Errorf("plugin test: %w", err)
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	load, err := t.loader(ctx, host)
	if err != nil {
		return err
	}
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
func (t *pluginTest) runFile(ctx context.Context, file string, load plugintest.Loader) (*scenariotest.Result, error) {
	text, err := safefile.Read(file, scenario.MaxSize)
	if err != nil {
		return nil, err
	}
	f, err := scenario.Parse(file, text)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(scenarioTimeout)
	result, err := scenariotest.Run(f, plugintest.New(load), func() error {
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

// nameModules takes the names of modules from the flags or from the names of the files.
func (t *pluginTest) nameModules() error {
	for i, text := range t.modules {
		name, file, named := strings.Cut(text, "=")
		if !named || strings.Contains(name, "/") {
			name, file = strings.TrimSuffix(filepath.Base(text), ".wasm"), text
		}
		if slices.Contains(t.names, name) {
			return fmt.Errorf("plugin test: --module: two modules are named %q: write --module NAME=FILE", name)
		}
		t.names, t.modules[i] = append(t.names, name), file
	}
	return nil
}

// loader loads the modules and returns a Loader of their plugins.
func (t *pluginTest) loader(ctx context.Context, host *wasm.Host) (plugintest.Loader, error) {
	loaders := map[string]func(settings string) (policy.Plugin, error){}
	for i, file := range t.modules {
		module, err := readModule(ctx, file)
		if err != nil {
			return nil, fmt.Errorf("plugin test: %w", err)
		}
		plugin, err := host.Open(ctx, file, module, wasm.LoadOptions{})
		if err != nil {
			return nil, config.PrefixErrors("plugin test: "+file, err)
		}
		loaders[t.names[i]] = loaderOf(ctx, plugin)
	}
	return func(name, settings string) (policy.Plugin, error) {
		switch {
		case name == "" && len(t.names) == 1:
			name = t.names[0]
		case name == "":
			return nil, fmt.Errorf("there are %d modules: a line `chain NAME…` must say which of %s make up the policy", len(t.names), strings.Join(t.names, ", "))
		case loaders[name] == nil:
			return nil, fmt.Errorf("chain: no module %q: want --module %s=FILE", name, name)
		}
		return loaders[name](settings)
	}, nil
}

// loaderOf returns a function that returns a plugin, which tests the plugin once with each settings.
func loaderOf(ctx context.Context, plugin *wasm.Plugin) func(settings string) (policy.Plugin, error) {
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
