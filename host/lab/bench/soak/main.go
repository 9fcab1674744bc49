// Package soak runs sluice in network namespaces beside hostile plugins, hostile tenants and constant change, and checks that
// nothing grows or slows down: memory, file descriptors, goroutines, the time of an update, failed connections. It fails
// if something does. It touches nothing outside its namespaces.
package soak

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

// Main runs bench soak with these arguments.
func Main(args []string) error {
	var o options
	flags := flag.NewFlagSet("soak", flag.ExitOnError)
	flags.DurationVar(&o.duration, "duration", 30*time.Minute, "how long to run, at least 1m")
	flags.DurationVar(&o.interval, "interval", 0, "time between two samples; 0: a sixtieth of the duration, at least 2s")
	flags.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary")
	flags.StringVar(&o.plugins, "plugins", "bin/plugins", "folder with the bundled plugins")
	flags.StringVar(&o.guests, "guests", "bin/soak-guests", "folder with the hostile modules")
	flags.StringVar(&o.log, "log", "bin/soak.log", "file for sluice's log")
	flags.StringVar(&o.profile, "profile", "", "file for a CPU profile of sluice, of the middle third of the time")
	_ = flags.Parse(args) // it exits
	if o.duration < time.Minute {
		return errors.New("-duration must be at least 1m")
	}
	if o.interval == 0 {
		o.interval = max(o.duration/60, 2*time.Second)
	}
	return benchutil.RunInNamespace(o.run)
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
