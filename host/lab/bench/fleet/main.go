// Package fleet measures the load that sluice on many nodes puts on one real API server, with agents that have their
// own connection, source, planner and engine, and an in-memory data plane. It prints Markdown tables; -write writes them
// to a file between its markers.
package fleet

import (
	"bytes"
	"context"
	"flag"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

type options struct {
	agents         int
	services       int
	endpoints      int
	spread         time.Duration
	rate           int // changes a second
	updateDuration time.Duration
	singleUpdates  int
	idleDuration   time.Duration
	write          string
}

// Main runs bench fleet with these arguments.
func Main(args []string) error {
	var o options
	flags := flag.NewFlagSet("fleet", flag.ExitOnError)
	flags.IntVar(&o.agents, "agents", 100, "number of agents")
	flags.IntVar(&o.services, "services", 10000, "number of Services")
	flags.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flags.DurationVar(&o.spread, "spread", time.Minute, "duration over which agent starts are spread, where not all start at once")
	flags.IntVar(&o.rate, "rate", 20, "changes a second")
	flags.DurationVar(&o.updateDuration, "lasting", 15*time.Second, "how long to make changes")
	flags.DurationVar(&o.idleDuration, "idle", 5*time.Second, "how long to measure the idle API server")
	flags.IntVar(&o.singleUpdates, "changes", 30, "changes one at a time")
	flags.StringVar(&o.write, "write", "", "file to write the tables to, between the markers")
	_ = flags.Parse(args) // it exits
	return benchutil.RunInNamespace(o.main)
}

// AgentsCommand is the command of bench that runs AgentsMain.
const AgentsCommand = "fleet-agents"

// AgentsMain is what bench does as the process of the agents.
func AgentsMain(args []string) error {
	flags := flag.NewFlagSet(AgentsCommand, flag.ExitOnError)
	agents := flags.Int("agents", 0, "number of agents")
	dir := flags.String("kubeconfigs", "", "folder with the kubeconfig of each")
	over := flags.Duration("over", 0, "over how long they start")
	_ = flags.Parse(args) // it exits
	return runAgents(*agents, *dir, *over, os.Stdin, os.Stdout)
}

func (o *options) main(ctx context.Context) error {
	got, err := o.measure(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	got.print(&text)
	return benchutil.Publish(o.write, "fleet", text.Bytes())
}
