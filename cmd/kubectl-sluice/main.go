// Command kubectl-sluice is a kubectl plugin: it shows the state of sluice on the nodes of a cluster, over the API server.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Exit codes, as those of sluice.
const (
	exitFailed = 1
	exitUsage  = 2 // the command line is wrong
	exitState  = 3 // what --fail-on lists, or --fail
)

// usageError is an error in the command line that cobra does not detect.
type usageError struct{ error }

// stateError is an error of a command that has printed its result.
type stateError struct{ error }

// version is set by the build (-ldflags "-X main.version=…").
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:]))
}

func execute(ctx context.Context, args []string) int {
	// What nodes and the API server say is escaped where it is printed; stdout is the last line of defense.
	stdout, stderr := printable.NewWriter(os.Stdout), printable.NewWriter(os.Stderr)
	root := newRootCommand()
	parsed := false
	root.PersistentPreRun = func(*cobra.Command, []string) { parsed = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	for _, line := range printable.Lines(err) {
		fmt.Fprintf(stderr, "kubectl sluice: %s\n", line)
	}
	switch {
	case errors.As(err, new(usageError)) || !parsed:
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	case errors.As(err, new(stateError)):
		return exitState
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "kubectl-sluice",
		Short: "Show the state of sluice on the nodes of a cluster",
		Long: `Shows what the sluice of each node does: its state, why endpoints get their shares, what happens to a connection, and what drains.

It reaches the sluice of a node through the API server: it forwards a port to its Pod, and shows a token of the ServiceAccount
sluice-viewer that is valid for that node and ten minutes. So you need to be allowed to list the Pods of sluice's namespace, to
create pods/portforward there, and serviceaccounts/token of sluice-viewer; nothing else is open.`,
		Version:           versionText(),
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sluice"},
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	o.register(root)
	root.AddCommand(newStatusCommand(o), newExplainCommand(o), newTraceCommand(o), newDrainsCommand(o), newPoliciesCommand(o), newBundleCommand(o))
	o.addCompletions(root)
	return root
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// output is the value of --output.
type output string

// register adds the flag. allowed are its values besides text, json and yaml.
func (o *output) register(cmd *cobra.Command, allowed ...string) {
	*o = "text"
	all := append([]string{"text", "json", "yaml"}, allowed...)
	cmd.Flags().StringVarP((*string)(o), "output", "o", "text", strings.Join(all, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(all, string(*o)) {
			return usageError{fmt.Errorf("--output %q: must be one of %s", string(*o), strings.Join(all, ", "))}
		}
		return nil
	}
}

// structured reports whether the output is JSON or YAML.
func (o output) structured() bool { return o == "json" || o == "yaml" }

// defaultTimeout bounds what a node may take.
const defaultTimeout = 15 * time.Second
