// Command sluice is a Kubernetes Service proxy. WebAssembly plugins decide how to balance load, and the kernel forwards.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// Exit codes.
const (
	exitFailed    = 1
	exitUsage     = 2 // the command line is wrong
	exitState     = 3 // what --fail-on lists
	exitCondition = 4 // what --fail-if says
)

// The output of all commands. What is printed of objects, modules and plugins passes printable.Escape or printable.Strings
// before, so that it stays within its line and column.
var (
	stdout = printable.NewWriter(os.Stdout)
	stderr = printable.NewWriter(os.Stderr)

	archives io.Writer = os.Stdout // that of bundles, which are no text
)

func main() {
	log.SetOutput(stderr) // of libraries
	if err := confine.Descriptors(); err != nil {
		log.Print("descriptors that sluice has inherited reach its children: ", err)
	}
	os.Exit(untilSignal(func(ctx context.Context) int { return execute(ctx, os.Args[1:]) }))
}

// untilSignal calls run with a context that ends with the first signal to stop. If run does not return in time, the process ends
// without it.
func untilSignal(run func(context.Context) int) (exitCode int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() {
		stop() // a second signal terminates the process
		asked := time.Now()
		stopBy.CompareAndSwap(0, asked.Add(stopTimeout).UnixNano()) // unless the command has extended it already
		for late := time.Unix(0, stopBy.Load()); time.Now().Before(late); late = time.Unix(0, stopBy.Load()) {
			time.Sleep(time.Until(late))
		}
		endLate(time.Since(asked))
	})
	return run(ctx)
}

// stopTimeout is how long a command may take to return after a signal. With the time that it takes to end, the process ends
// within 2 s.
const stopTimeout = 1800 * time.Millisecond

// stopBy is when a command that was asked to stop is late, in nanoseconds since 1970.
var stopBy atomic.Int64

// extendStop says that a command may take longer to stop, by a time from now on: to hand over to kube-proxy.
func extendStop(by time.Duration) { stopBy.Store(time.Now().Add(stopTimeout + by).UnixNano()) }

// maxStacks bounds what endLate prints, in bytes.
const maxStacks = 256 << 10

// endLate ends the process although its command has not returned, and prints what it waits for. The kernel keeps forwarding; what
// has changed since the last checkpoint is not in it.
func endLate(after time.Duration) {
	stacks := make([]byte, maxStacks)
	fmt.Fprintf(stderr, "sluice: still running %s after a signal to stop, which is a bug: the process ends without waiting for\n%s\n",
		after.Round(time.Millisecond), stacks[:runtime.Stack(stacks, true)])
	os.Exit(exitFailed)
}

// cobraSuggestion is what cobra puts between the error of an unknown command and similar names, one per line.
const cobraSuggestion = "\n\nDid you mean this?\n"

// compileCommand is the command line of the processes in which sluice compiles plugins. It is not for users, so it is not
// one of the commands below.
var compileCommand = []string{"sluice", "compile-plugin"}

// processCommand is the command line of the processes in which plugins run. It is not for users either.
var processCommand = []string{"sluice", "plugin-process"}

// precompiled is set by the build of the image (-ldflags "-X main.precompiled=…"): names and digests of the code of bundled
// plugins, which is in the folder "compiled" beside the program.
var precompiled = ""

// precompiledPlugins returns the code of bundled plugins that came with this program.
func precompiledPlugins() wasm.Precompiled {
	program, err := os.Executable()
	if err != nil || precompiled == "" {
		return wasm.Precompiled{}
	}
	p, err := wasm.ParsePrecompiled(filepath.Join(filepath.Dir(program), "compiled"), precompiled)
	if err != nil {
		fmt.Fprintln(stderr, "sluice:", err) // a bug of the build; plugins are compiled
	}
	return p
}

func execute(ctx context.Context, args []string) int {
	if len(args) > 0 && args[0] == compileCommand[1] {
		return wasm.CompileMain(args[1:], os.Stdin, os.Stderr)
	}
	if len(args) > 0 && args[0] == processCommand[1] {
		return wasm.ProcessMain(args[1:], os.Stderr)
	}
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
	lines := printable.Lines(err)
	if text, commands, ok := strings.Cut(err.Error(), cobraSuggestion); ok {
		similar := strings.Split(strings.TrimSpace(commands), "\n\t")
		lines = []string{printable.Escape(text) + ` (did you mean "` + strings.Join(similar, `" or "`) + `"?)`}
	}
	for _, line := range lines {
		fmt.Fprintf(stderr, "sluice: %s\n", line)
	}
	var usage usageError
	if errors.As(err, &usage) || !parsed {
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	if errors.As(err, new(stateError)) {
		return exitState
	}
	if errors.As(err, new(conditionError)) {
		return exitCondition
	}
	return exitFailed
}

// usageError is an error in the command line that cobra does not detect.
type usageError struct{ error }

// oneArg requires one argument, and names it in errors.
func oneArg(name string) cobra.PositionalArgs { return exactArgs(name) }

// exactArgs requires one argument for each name, and names them in errors.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		switch n := len(names); {
		case len(args) < n:
			return usageError{fmt.Errorf("%s: missing argument: %s", path, names[len(args)])}
		case len(args) > n && n == 1:
			return usageError{fmt.Errorf("%s: accepts one %s, received %d: %q", path, names[0], len(args), args)}
		case len(args) > n:
			return usageError{fmt.Errorf("%s: accepts %d arguments, received %d: %q", path, n, len(args), args)}
		}
		return nil
	}
}

// atMostOneArg accepts one argument, and names it in errors.
func atMostOneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return oneArg(name)(cmd, args)
	}
}

// newGroup returns a command that only has subcommands: without one, or with an unknown one, the command line is wrong.
func newGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{Use: use, Short: short, DisableFlagsInUseLine: true}
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.Name()
	}
	group.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return usageError{fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), spelling.DidYouMean(args[0], names))}
	}
	group.RunE = func(*cobra.Command, []string) error {
		return usageError{fmt.Errorf("%s: missing command: %s", use, strings.Join(names, ", "))}
	}
	group.AddCommand(commands...)
	return group
}

// buildCommands are commands of builds with a tag.
var buildCommands []func() *cobra.Command

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "sluice",
		Short:   "A Kubernetes Service proxy with WebAssembly policies",
		Version: versionText(),
		Long: `sluice runs on every node instead of kube-proxy. It watches Services and EndpointSlices, asks WebAssembly plugins which
endpoints get new connections, with what weight, and how terminating endpoints are drained, and programs the decisions
into the kernel. No packet passes through a plugin.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newConfigCommand(), newCheckCommand())
	root.AddCommand(newRunCommand(), newControllerCommand(), newPlanCommand(), newTraceCommand(), newExplainCommand(), newStatusCommand(), newDrainsCommand(), newLogLevelCommand(), newBundleCommand(), newSimulateCommand(), newReplayCommand(), newPluginCommand(), newCleanupCommand(),
		newVersionCommand())
	for _, add := range buildCommands {
		root.AddCommand(add())
	}
	addCompletions(root)
	return root
}
