// Package peer measures kube-proxy, or another build of sluice, and sluice alternately, with the same cluster at the same real
// API server, each time on a new node (a network namespace). It observes them from outside: connections, and CPU time and memory
// of their processes (Main), and the connections' own cost (DataPlaneMain). It prints Markdown tables; -write writes them to a
// file between its markers.
package peer

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

type options struct {
	sizes        string
	endpoints    int
	reps         int
	changes      [2]int // of each proxy, a repetition
	minSync      time.Duration
	bin          string
	kubeProxy    string // path
	base         string
	only         string
	write        string
	quick        bool
	startTimeout time.Duration // for a start
}

// Main runs bench peer with these arguments.
func Main(args []string) error {
	var o options
	flags := flag.NewFlagSet("peer", flag.ExitOnError)
	flags.IntVar(&o.reps, "reps", 2, "starts of each proxy at each size; the order alternates")
	flags.IntVar(&o.changes[0], "kube-proxy-changes", 20, "updates to measure per start of kube-proxy")
	flags.IntVar(&o.changes[1], "changes", 100, "updates to measure per start of sluice")
	flags.StringVar(&o.only, "only", "", "measure only this proxy; the tables lack the other one's values")
	flags.BoolVar(&o.quick, "quick", false, "smoke test with a small cluster and few changes")
	o.register(flags, "1000,5000,10000")
	_ = flags.Parse(args) // it exits
	if o.quick {
		o.setQuick()
	}
	return o.inNamespace(o.run)
}

// inNamespace runs f in a network namespace of its own. kube-proxy is built before: modules are not downloaded from in there.
func (o *options) inNamespace(f func(ctx context.Context) error) (err error) {
	if o.kubeProxy == "" && o.base == "" {
		if o.kubeProxy, err = programs.BuildKubeProxy(context.Background(), os.Stderr); err != nil {
			return err
		}
	}
	return benchutil.RunInNamespace(f)
}

// register adds the flags that all commands have, with their default of -sizes.
func (o *options) register(flags *flag.FlagSet, sizes string) {
	flags.StringVar(&o.sizes, "sizes", sizes, "numbers of Services, ascending; beyond 10000, of their ports")
	flags.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flags.DurationVar(&o.minSync, "kube-proxy-min-sync", time.Second, "kube-proxy's nftables.minSyncPeriod; 1s is its default")
	flags.StringVar(&o.kubeProxy, "kube-proxy", "", "binary of kube-proxy; by default "+programs.SuiteVersion+", which is built if it is missing")
	flags.StringVar(&o.base, "base", "", "binary of another build of sluice to measure instead of kube-proxy, as often as sluice")
	flags.StringVar(&o.bin, "bin", "bin", "directory of the sluice binary")
	flags.StringVar(&o.write, "write", "", "file to write the tables to, between the markers")
	flags.DurationVar(&o.startTimeout, "start-timeout", 15*time.Minute, "timeout for the start of a proxy")
}

// setQuick configures a run of less than a minute, even on a busy machine.
func (o *options) setQuick() {
	o.quick, o.sizes, o.endpoints, o.reps, o.changes = true, "200", 5, 1, [2]int{3, 10}
	o.startTimeout, o.minSync = 2*time.Minute, time.Second
}

func (o *options) run(ctx context.Context) error {
	got, err := o.measureAll(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	got.print(&text)
	return benchutil.Publish(o.write, "peer", text.Bytes())
}

// bench is the state of a run.
type bench struct {
	options
	env      *environment
	proxies  [2]*proxy // the other one and sluice
	updater  *loadgen.SliceUpdater
	services int // Services
	results  results
	dir      string
}

// begin starts a control plane, and returns the sizes to measure.
func (o *options) begin(ctx context.Context) (b *bench, sizes []int, err error) {
	for _, f := range strings.Split(o.sizes, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < minServices || !slices.IsSorted(append(sizes, n)) {
			return nil, nil, fmt.Errorf("-sizes %q: must be ascending numbers of at least %d", o.sizes, minServices)
		}
		sizes = append(sizes, n)
	}
	b = &bench{options: *o}
	if err := b.findPrograms(ctx); err != nil {
		return nil, nil, err
	}
	if b.dir, err = os.MkdirTemp("", "bench-peer-"); err != nil {
		return nil, nil, err
	}
	if b.env, err = newEnvironment(ctx, b.dir); err != nil {
		b.end()
		return nil, nil, err
	}
	return b, sizes, nil
}

// end removes everything.
func (b *bench) end() {
	if b.env != nil {
		b.env.close()
	}
	_ = os.RemoveAll(b.dir)
}

// measureAll runs all measurements of Main.
func (o *options) measureAll(ctx context.Context) (*results, error) {
	b, sizes, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer b.end()
	for _, n := range sizes {
		if err := b.measureSize(ctx, n); err != nil {
			return nil, fmt.Errorf("%d Services: %w", n, err)
		}
	}
	return &b.results, nil
}

// findPrograms finds the measured programs and their versions.
func (b *bench) findPrograms(ctx context.Context) error {
	own, err := filepath.Abs(filepath.Join(b.bin, "sluice"))
	if err != nil {
		return err
	}
	other, version := kubeProxy(b.kubeProxy, b.minSync, b.changes[0]), "--version"
	if b.base != "" {
		if b.base, err = filepath.Abs(b.base); err != nil {
			return err
		}
		other, version = sluice("base", b.base, b.changes[1]), "version"
	}
	b.proxies = [2]*proxy{other, sluice("sluice", own, b.changes[1])}
	var versions []string
	for _, c := range [][]string{{other.name, other.path, version}, {"nft", "nft", "--version"}, {"sluice", own, "version"}} {
		out, err := exec.CommandContext(ctx, c[1], c[2:]...).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(c[1:], " "), err)
		}
		f := strings.Fields(string(out))
		if len(f) < 2 {
			return fmt.Errorf("%s: no version in %q", strings.Join(c[1:], " "), out)
		}
		versions = append(versions, c[0]+" "+f[1]) // each begins with a name
	}
	b.results = results{Machine: benchutil.DescribeMachine(), Versions: versions, Other: other.name, Endpoints: b.endpoints, MinSync: b.minSync, Quick: b.quick}
	return nil
}

// minServices is the least number of Services that is measured.
const minServices = 10

// Services beyond the first plainServices have portsOfOthers ports and an endpoint: an API server takes hours to create 44,000
// Services.
const plainServices, portsOfOthers = 10_000, 4

// createServices adds Services up to a total of their ports.
func (b *bench) createServices(ctx context.Context, total int) error {
	b.progress("%s", describeSize(total, b.endpoints))
	plain := min(total, plainServices)
	if err := loadgen.CreateServices(ctx, b.env.Cluster, min(b.services, plain), plain, b.endpoints, 1); err != nil {
		return err
	}
	all := plain + (total-plain)/portsOfOthers
	if err := loadgen.CreateServices(ctx, b.env.Cluster, max(b.services, plain), all, 1, portsOfOthers); err != nil {
		return err
	}
	b.services = all
	var err error
	b.updater, err = loadgen.NewSliceUpdater(ctx, b.env.Cluster, loadgen.ServiceName(movingService))
	return err
}

// describeSize says what a size is.
func describeSize(total, endpoints int) string {
	if total <= plainServices {
		return fmt.Sprintf("%d × %d Services × endpoints", total, endpoints)
	}
	return fmt.Sprintf("%d ports of Services: %d × %d Services × endpoints, and %d Services of %d ports and an endpoint",
		plainServices+(total-plainServices)/portsOfOthers*portsOfOthers, plainServices, endpoints, (total-plainServices)/portsOfOthers, portsOfOthers)
}

// measureSize measures both proxies at one size.
func (b *bench) measureSize(ctx context.Context, size int) error {
	if err := b.createServices(ctx, size); err != nil {
		return err
	}
	row := sizeResult{Services: size}
	var err error
	if row.AckLatency, row.WatchLatency, err = b.measureLowerBounds(ctx, b.changes[1]); err != nil {
		return err
	}
	for rep := range b.reps {
		for i := range b.proxies {
			which := (i + rep) % len(b.proxies)
			if b.only != "" && b.only != b.proxies[which].name {
				continue
			}
			b.progress("%s, %d of %d", b.proxies[which].name, rep+1, b.reps)
			if _, err = b.measureProxy(ctx, b.proxies[which], b.services, &row.Proxies[which]); err != nil {
				return err
			}
		}
	}
	b.results.Rows = append(b.results.Rows, row)
	return nil
}

// progress prints progress to standard error.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
