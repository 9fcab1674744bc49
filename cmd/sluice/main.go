// Command sluice is a Kubernetes Service proxy whose load balancing is decided by WebAssembly plugins and carried out
// by the kernel.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes: 1 something went wrong, 2 the command line is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends at once what the first one could not
	os.Exit(execute(ctx, os.Args[1:]))
}

func execute(ctx context.Context, args []string) int {
	root := newRootCommand()
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "sluice: %s\n", strings.TrimSuffix(line, "\n"))
	}
	var usage usageError
	if errors.As(err, &usage) || !understood {
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// usageError is a mistake in the command line that cobra cannot see.
type usageError struct{ error }

// oneArg wants exactly one argument, and asks for it by what it is: "which Service?".
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		switch len(args) {
		case 0:
			return usageError{fmt.Errorf("%s: which %s?", path, what)}
		case 1:
			return nil
		}
		return usageError{fmt.Errorf("%s: one %s, not %d: %q", path, what, len(args), args)}
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "sluice",
		Short:   "A Kubernetes Service proxy with WebAssembly policies",
		Version: versionText(),
		Long: `sluice runs on every node in the place of kube-proxy. It watches Services and EndpointSlices, asks WebAssembly
plugins which endpoints get new connections, with what weight, and how a leaving one is drained, and programs the
answer into the kernel. No packet passes through a plugin.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newConfigCommand(), newCheckCommand())
	root.AddCommand(newRunCommand(), newPlanCommand(), newTraceCommand(), newExplainCommand(), newPluginCommand(), newCleanupCommand(),
		newVersionCommand())
	return root
}
