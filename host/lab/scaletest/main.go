// Command scaletest measures the load that sluice on many nodes puts on one real API server, with agents that have their
// own connection, source, planner and engine, and an in-memory data plane. It prints Markdown tables; -write writes them
// to a file between its markers.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
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

func main() {
	var o options
	var dir string
	var over time.Duration
	flag.IntVar(&o.agents, "agents", 100, "number of agents")
	flag.IntVar(&o.services, "services", 10000, "number of Services")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.DurationVar(&o.spread, "spread", time.Minute, "duration over which agent starts are spread, where not all start at once")
	flag.IntVar(&o.rate, "rate", 20, "changes a second")
	flag.DurationVar(&o.updateDuration, "lasting", 15*time.Second, "how long to make changes")
	flag.DurationVar(&o.idleDuration, "idle", 5*time.Second, "how long to measure the idle API server")
	flag.IntVar(&o.singleUpdates, "changes", 30, "changes one at a time")
	flag.StringVar(&o.write, "write", "", "file to write the tables to, between the markers")
	flag.StringVar(&dir, "child", "", "run agents with the kubeconfigs of this folder (this program starts itself so)")
	flag.DurationVar(&over, "over", 0, "with -child: over how long they start")
	flag.Parse()
	if dir == "" {
		benchutil.RunInNamespace("scaletest", o.main)
	} else if err := runAgents(o.agents, dir, over, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scaletest:", err)
		os.Exit(1)
	}
}

func (o *options) main(ctx context.Context) error {
	got, err := o.measure(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	got.print(&text)
	return benchutil.Publish(o.write, "scaletest", text.Bytes())
}
