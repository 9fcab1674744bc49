package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// version is set by the build (-ldflags "-X main.version=…"). Without it, the version of the module is used.
var version = ""

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of sluice, of its plugin ABI and of Go",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), versionText())
		},
	}
}

// versionText is the output of `sluice version` and `sluice --version`.
func versionText() string {
	return fmt.Sprintf("sluice %s (plugin ABI %d.%d, %s %s/%s)",
		buildVersion(), abi.Major, abi.Minor, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
