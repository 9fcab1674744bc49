package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/plugin/scaffold"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

func newPluginNewCommand() *cobra.Command {
	var lang, sdk, template string
	var names []string
	for _, l := range scaffold.Languages() {
		names = append(names, l.Name)
	}
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a folder with a new plugin that builds, tests and runs",
		Long: `Makes the folder NAME with a small policy that you can change: the plugin with settings, tests, a Makefile, a configuration and
manifests to try it on; with --template empty without settings, and it changes nothing. A plugin in Go gets the SDK in the version of
this sluice; if that is no release, from a checkout: that of --sdk, or the one that contains the working directory. Other languages have their SDK in the folder.`,
		Example: "  sluice plugin new near\n  sluice plugin new near --lang c",
		Args:    oneArg("name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(checkFlag("lang", lang, names...), checkFlag("template", template, scaffold.Templates...)); err != nil {
				return err
			}
			if err := scaffold.CheckName(args[0]); err != nil {
				return usageError{err}
			}
			p := scaffold.Plugin{Name: args[0], Empty: template == "empty"}
			p.Lang, _ = scaffold.Find(lang)
			var err error
			if p.Lang.Name == "go" {
				if p.SDK, err = scaffold.FindSDK(sdk, buildVersion(), "."); err != nil {
					return fmt.Errorf("plugin new: --sdk: %w", err)
				}
			} else if sdk != "" {
				return usageError{fmt.Errorf("--sdk is for Go: a plugin in %s has its SDK in the folder", p.Lang.Title)}
			}
			folder, err := p.Create(".")
			if err != nil {
				return fmt.Errorf("plugin new: %w", err)
			}
			next := "make"
			if p.SDK.Version != "" {
				next = "go mod tidy && make"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "created %s, a plugin in %s; README.md says what is there. Next:\n  cd %s && %s\n", folder, p.Lang.Title, folder, next)
			return err
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "go", "language: "+strings.Join(names, ", "))
	cmd.Flags().StringVar(&template, "template", "example", "what it begins with: "+strings.Join(scaffold.Templates, ", "))
	cmd.Flags().StringVar(&sdk, "sdk", "", "checkout of sluice whose Go SDK to use (default: the version of this sluice, if it is a release, else the checkout that contains the working directory)")
	return cmd
}

func newPluginBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build [DIR]",
		Short: "Build the plugin in a folder",
		Long: `Builds the plugin in a folder, by default this one, as NAME.wasm in it, where NAME is the name of the folder. It prints the commands
that it runs on standard error; for a plugin of 'sluice plugin new', they are those of its Makefile. If a program is missing, it says
how to install it.`,
		Example: "  sluice plugin build\n  sluice plugin build near && sluice plugin check near/near.wasm",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("plugin build: accepts one folder, received %d: %q", len(args), args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			module, err := scaffold.Build(cmd.Context(), dir, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("plugin build: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "built %s\n", printable.Escape(filepath.ToSlash(module)))
			return err
		},
	}
}

func newPluginEmbedCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "embed MODULE [FILE]",
		Short: "Write what a plugin says of itself into its module",
		Long: `Writes the manifest of a plugin, FILE, by default plugin.json beside the module, into the module's custom section "sluice": title, version,
licence, role, inputs and the schema of the settings. It replaces one that is there. The same module and manifest make the same bytes.
'sluice plugin build' and the Makefile of 'sluice plugin new' do that as well. It reports what is wrong with the manifest.`,
		Example: "  sluice plugin embed near.wasm",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError{fmt.Errorf("plugin embed: accepts a module and a manifest, received %d arguments: %q", len(args), args)}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			file := filepath.Join(filepath.Dir(args[0]), manifest.File)
			if len(args) > 1 {
				file = args[1]
			}
			if err := manifest.EmbedFile(args[0], file); err != nil {
				return fmt.Errorf("plugin embed: %w", err)
			}
			return nil
		},
	}
}
