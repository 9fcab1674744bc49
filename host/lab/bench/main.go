// Command bench measures sluice on this machine: plugin calls, the policies of a whole cluster, and programming from the
// event to the kernel's acknowledgement in its own network namespace. It prints Markdown tables; -write writes them to a
// file between its markers.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

var sizes = []string{"1000x1", "1000x10", "5000x10", "10000x10", "10000x25", "44125x1", "5006:250011"}

const worstSize = "10000x10"

func main() {
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		os.Exit(children[os.Args[1]](os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.child, "size", "", "measure this size, such as 1000x10 or 5006:250011, in a network namespace, and print JSON")
	flag.IntVar(&o.changes, "changes", 100, "updates of each kind to measure")
	flag.DurationVar(&o.churn, "churn", 10*time.Second, "how long to make 1,000 updates per second")
	flag.DurationVar(&o.idle, "idle", 10*time.Second, "how long to measure idle CPU use")
	flag.BoolVar(&o.withPolicy, "policy", false, "with -size: every Service has a policy")
	flag.StringVar(&o.profiles, "profiles", "", "with -size or -worst: directory for CPU and heap profiles")
	flag.BoolVar(&o.engineCPU, "engine-cpu", false, "with -size and -worst or -chain: also measure the CPU time of the engine, which makes it slower")
	flag.StringVar(&o.modules.dir, "bin", "bin", "directory of the modules that make bench builds")
	flag.BoolVar(&o.modules.here, "in-process", false, "run plugins in this process, not in processes of their own as sluice run does")
	flag.BoolVar(&o.worst, "worst", false, "only measure large updates")
	flag.BoolVar(&o.calls, "calls", false, "measure plugin calls only")
	flag.BoolVar(&o.chain, "chain", false, "only measure a chain of plugins on every Service")
	flag.BoolVar(&o.alternate, "alternate", false, "only compare an endpoint update between cluster sizes")
	flag.BoolVar(&o.outcomes, "outcomes", false, "only measure what counting the outcomes of connections costs")
	flag.BoolVar(&o.simulate, "simulate", false, "only measure sluice simulate")
	flag.BoolVar(&o.record, "record", false, "only measure recordings and their replay")
	flag.BoolVar(&o.memory, "memory", false, "only measure the memory of plugins")
	flag.BoolVar(&o.blocks, "blocks", false, "with -size: measure a block of updates for each line of standard input")
	flag.DurationVar(&o.ticks, "ticks", 0, "only write the time to standard output at this interval, see ticker")
	flag.StringVar(&o.write, "write", "", "file to write the tables to, between the markers")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	settings
	child, write string
	calls, worst bool
	chain        bool
	alternate    bool
	outcomes     bool
	blocks       bool
	ticks        time.Duration
	simulate     bool
	record       bool
	memory       bool
}

func (o *options) run() error {
	ctx := context.Background()
	if o.ticks > 0 {
		return writeTicks(os.Stdout, o.ticks)
	}
	if o.child != "" {
		return o.inNamespace(ctx)
	}
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "Machine: %s.\n", benchutil.DescribeMachine())
	if o.alternate {
		list, err := measureAlternating()
		if err == nil {
			printAlternating(out, list)
			_, err = fmt.Print(out)
		}
		return err
	}
	if o.outcomes {
		return o.publishOutcomes(out)
	}
	if o.chain || o.worst {
		measure := o.printChain
		if o.worst {
			measure = o.printLargeUpdates
		}
		err := measure(out)
		if err == nil {
			_, err = fmt.Print(out)
		}
		return err
	}
	if o.memory {
		err := o.printPluginMemory(ctx, out)
		if err == nil {
			_, err = fmt.Print(out)
		}
		return err
	}
	if o.record {
		return o.publishRecordings(ctx, out)
	}
	if o.simulate {
		err := o.printSimulations(ctx, out)
		if err == nil {
			err = benchutil.Publish(o.write, "simulate", out.Bytes())
		}
		return err
	}
	if err := o.printCalls(ctx, out); err != nil {
		return err
	}
	if o.calls {
		_, err := fmt.Print(out)
		return err
	}
	if err := o.printPluginMemory(ctx, out); err != nil {
		return err
	}
	cost, err := policyCost(ctx, o.modules, size{10000, 100000})
	if err != nil {
		return err
	}
	cost.print(out)
	var all []programmingResult
	for _, s := range sizes {
		f, err := inChild[programmingResult](o, s)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	printProgramming(out, all)
	list, err := measureAlternating()
	if err != nil {
		return err
	}
	printAlternating(out, list)
	if err := o.printLargeUpdates(out); err != nil {
		return err
	}
	if err := o.printChain(out); err != nil {
		return err
	}
	if err := benchutil.Publish(o.write, "bench", out.Bytes()); err != nil {
		return err
	}
	out.Reset()
	fmt.Fprintf(out, "Machine: %s.\n", benchutil.DescribeMachine())
	return o.publishOutcomes(out)
}

func (o *options) printLargeUpdates(out *bytes.Buffer) error {
	list, err := inChild[[]largeUpdate](o, worstSize, "-worst", "-profiles", o.profiles)
	if err == nil {
		printLargeUpdates(out, worstSize, list)
	}
	return err
}

func (o *options) printChain(out *bytes.Buffer) error {
	f, err := inChild[chainResult](o, worstSize, "-chain")
	if err == nil {
		f.print(out)
	}
	return err
}

// publishOutcomes measures what counting costs, and writes it to a table of its own.
func (o *options) publishOutcomes(out *bytes.Buffer) error {
	costs, err := inChild[[]outcomeCost](o, sizes[0], "-outcomes")
	if err != nil {
		return err
	}
	printOutcomes(out, costs)
	return benchutil.Publish(o.write, "outcomes", out.Bytes())
}

// inNamespace measures the size of -size and prints JSON.
func (o *options) inNamespace(ctx context.Context) error {
	if err := testnet.Enter(); err != nil {
		return err
	}
	s, err := parseSize(o.child)
	if err != nil {
		return err
	}
	if o.blocks {
		return runBlocks(ctx, s, os.Stdin, os.Stdout)
	}
	var f any
	switch {
	case o.outcomes:
		f, err = measureOutcomes(ctx)
	case o.chain:
		f, err = measureChain(ctx, s, o.settings)
	case o.worst:
		f, err = measureLargeUpdates(ctx, s, o.settings)
	default:
		f, err = measureProgramming(ctx, s, o.settings)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// inChild measures a size in a child process, so that memory figures are independent.
func inChild[T any](o *options, s string, more ...string) (f T, err error) {
	exe, err := os.Executable()
	if err != nil {
		return f, err
	}
	args := []string{"-size", s, "-changes", fmt.Sprint(o.changes), "-churn", o.churn.String(), "-idle", o.idle.String(), "-bin", o.modules.dir, fmt.Sprint("-in-process=", o.modules.here)}
	cmd := exec.Command(exe, append(args, more...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("measuring %s: %w", s, err)
	}
	return f, json.Unmarshal(out, &f)
}
