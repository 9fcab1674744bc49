// Command soak runs sluice in network namespaces beside hostile plugins, hostile tenants and constant change, and checks that
// nothing grows or slows down: memory, file descriptors, goroutines, the time of an update, failed connections. It exits with
// an error if something does. It touches nothing outside its namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

// options are the flags.
type options struct {
	duration, interval      time.Duration
	sluice, plugins, guests string
	log, profile            string
}

func main() {
	var o options
	flag.DurationVar(&o.duration, "duration", 30*time.Minute, "how long to run, at least 1m")
	flag.DurationVar(&o.interval, "interval", 0, "time between two samples; 0: a sixtieth of the duration, at least 2s")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary")
	flag.StringVar(&o.plugins, "plugins", "bin/plugins", "folder with the bundled plugins")
	flag.StringVar(&o.guests, "guests", "bin/soak-guests", "folder with the hostile modules")
	flag.StringVar(&o.log, "log", "bin/soak.log", "file for sluice's log")
	flag.StringVar(&o.profile, "profile", "", "file for a CPU profile of sluice, of the middle third of the time")
	flag.Parse()
	if o.duration < time.Minute {
		fmt.Fprintln(os.Stderr, "soak: -duration must be at least 1m")
		os.Exit(2)
	}
	if o.interval == 0 {
		o.interval = max(o.duration/60, 2*time.Second)
	}
	benchutil.RunInNamespace("soak", o.run)
}

// run runs the soak and returns an error if a check fails.
func (o options) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "sluice-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cluster, err := newCluster(filepath.Join(dir, "manifests"))
	if err != nil {
		return err
	}
	node, err := startNode(o, dir, cluster)
	if err != nil {
		return err
	}
	defer node.lab.Close()
	fmt.Printf("soak: %s on %s; a sample every %s; the first %s without hostile plugins and tenants\n",
		o.duration, benchutil.DescribeMachine(), o.interval, calm(o.duration))
	samples, err := node.observe(ctx, o)
	if err == nil {
		err = ctx.Err()
	}
	return errors.Join(err, node.stop(), report(os.Stdout, samples))
}

// calm is the time at the start without hostile plugins and tenants, for comparison.
func calm(all time.Duration) time.Duration { return all / 10 }
