// Command peer measures kube-proxy and sluice side by side: both get the same cluster from the same real API server,
// each on a node (a network namespace) that nobody has used before, in alternation, and are looked at by what needs
// nothing of them: whether connections arrive, and what their processes take. It prints Markdown tables; -write puts
// them into a file between its markers.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

type options struct {
	sizes        string
	endpoints    int
	reps         int
	changes      [2]int // of kube-proxy and of sluice, a repetition
	rounds       int
	minSync      time.Duration
	bin          string
	only         string
	write        string
	quick        bool
	block        time.Duration // of each half of a block
	startTimeout time.Duration // for a start
}

func main() {
	var o options
	flag.StringVar(&o.sizes, "sizes", "1000,5000,10000", "numbers of Services, rising")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.IntVar(&o.reps, "reps", 2, "how often each proxy is started at each size; the order alternates")
	flag.IntVar(&o.changes[0], "kube-proxy-changes", 20, "changes to measure with kube-proxy, each time that it is started")
	flag.IntVar(&o.changes[1], "changes", 100, "changes to measure with sluice, each time that it is started")
	flag.IntVar(&o.rounds, "rounds", 15, "rounds of connections, for the data plane; 0: none")
	flag.DurationVar(&o.minSync, "kube-proxy-min-sync", time.Second, "kube-proxy's nftables.minSyncPeriod; 1s is its default")
	flag.StringVar(&o.only, "only", "", "measure this proxy alone, and no data plane: the tables lack the other one's figures")
	flag.StringVar(&o.bin, "bin", "bin", "folder of sluice")
	flag.BoolVar(&o.quick, "quick", false, "a small cluster and few rounds: whether it works, no figures")
	flag.StringVar(&o.write, "write", "", "file to put the tables into, between the markers")
	flag.DurationVar(&o.block, "block", 400*time.Millisecond, "the data plane's blocks: at most so long with one connection at a time, and then so long with some")
	flag.DurationVar(&o.startTimeout, "patience", 5*time.Minute, "how long a start may take")
	flag.Parse()
	if o.quick {
		o.setQuick()
	}
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// setQuick makes it a run of less than a minute, on a busy machine too.
func (o *options) setQuick() {
	o.quick, o.sizes, o.endpoints, o.reps, o.changes = true, "200", 5, 1, [2]int{3, 10}
	o.rounds, o.block, o.startTimeout, o.minSync = 1, 50*time.Millisecond, 2*time.Minute, time.Second
}

func (o *options) run() error {
	if err := testnet.Enter(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	got, err := o.measureAll(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	got.print(&text)
	return benchutil.Publish(o.write, "benchcompare", text.Bytes())
}

// bench is a run.
type bench struct {
	options
	env      *environment
	proxies  [2]*proxy // kube-proxy, sluice
	updater  *loadgen.SliceUpdater
	services int // Services
	results  results
}

// measureAll is a run.
func (o *options) measureAll(ctx context.Context) (*results, error) {
	var sizes []int
	for _, f := range strings.Split(o.sizes, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < minServices || !slices.IsSorted(append(sizes, n)) {
			return nil, fmt.Errorf("-sizes %q: rising numbers, %d at least", o.sizes, minServices)
		}
		sizes = append(sizes, n)
	}
	b := &bench{options: *o}
	if err := b.findPrograms(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "peer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if b.env, err = newEnvironment(ctx, dir); err != nil {
		return nil, err
	}
	defer b.env.close()
	if b.rounds > 0 && b.only == "" {
		if err := b.measureDataPlane(ctx, minServices, nil); err != nil {
			return nil, fmt.Errorf("data plane, %d Services: %w", minServices, err)
		}
	}
	for _, n := range sizes {
		if err := b.measureSize(ctx, n, n == sizes[len(sizes)-1]); err != nil {
			return nil, fmt.Errorf("%d Services: %w", n, err)
		}
	}
	return &b.results, nil
}

// findPrograms finds what is measured, and says what it is.
func (b *bench) findPrograms(ctx context.Context) error {
	dir, err := binaries.Find(append(binaries.Cluster(), binaries.KubeProxy)...)
	if err != nil {
		return err
	}
	own, err := filepath.Abs(filepath.Join(b.bin, "sluice"))
	if err != nil {
		return err
	}
	kube := filepath.Join(dir, binaries.KubeProxy)
	b.proxies = [2]*proxy{kubeProxy(kube, b.minSync, b.changes[0]), sluice(own, b.changes[1])}
	var said []string
	for _, c := range [][]string{{"kube-proxy", kube, "--version"}, {"nft", "nft", "--version"}, {"sluice", own, "version"}} {
		out, err := exec.CommandContext(ctx, c[1], c[2:]...).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(c[1:], " "), err)
		}
		f := strings.Fields(string(out))
		if len(f) < 2 {
			return fmt.Errorf("%s: no version in %q", strings.Join(c[1:], " "), out)
		}
		said = append(said, c[0]+" "+f[1]) // each begins with a name
	}
	b.results = results{Machine: benchutil.DescribeMachine(), Versions: said, Endpoints: b.endpoints, MinSync: b.minSync, Quick: b.quick}
	return nil
}

// minServices is how many Services the data plane is first measured with.
const minServices = 10

// createServices brings the cluster to a size.
func (b *bench) createServices(ctx context.Context, services int) error {
	b.progress("%d Services of %d endpoints", services, b.endpoints)
	if err := loadgen.CreateServices(ctx, b.env.cluster, b.services, services, b.endpoints); err != nil {
		return err
	}
	b.services = services
	var err error
	b.updater, err = loadgen.NewSliceUpdater(ctx, b.env.cluster, loadgen.ServiceName(movingService))
	return err
}

// measureSize measures all at one size, and the data plane at the last one.
func (b *bench) measureSize(ctx context.Context, services int, last bool) error {
	if err := b.createServices(ctx, services); err != nil {
		return err
	}
	row := sizeResult{Services: services}
	var err error
	if row.AckLatency, row.WatchLatency, err = b.measureLowerBounds(ctx, b.changes[1]); err != nil {
		return err
	}
	var nodes [2]*node // as they were programmed last
	for rep := range b.reps {
		for i := range b.proxies {
			which := (i + rep) % len(b.proxies)
			if b.only != "" && b.only != b.proxies[which].name {
				continue
			}
			b.progress("%s, %d of %d", b.proxies[which].name, rep+1, b.reps)
			if nodes[which], err = b.measureProxy(ctx, b.proxies[which], services, &row.Proxies[which]); err != nil {
				return err
			}
		}
	}
	b.results.Rows = append(b.results.Rows, row)
	if b.rounds == 0 || b.only != "" || !last {
		return nil
	}
	return b.measureDataPlane(ctx, services, &nodes)
}

// measureDataPlane measures the data plane through the last Service with so many Services programmed: on the nodes given, or on
// new ones.
func (b *bench) measureDataPlane(ctx context.Context, services int, nodes *[2]*node) error {
	if nodes == nil {
		if err := b.createServices(ctx, services); err != nil {
			return err
		}
		nodes = new([2]*node)
		for i, p := range b.proxies {
			quiet := *p
			quiet.changes = 0
			var ignored proxyResult
			var err error
			if nodes[i], err = b.measureProxy(ctx, &quiet, services, &ignored); err != nil {
				return err
			}
		}
	}
	bare, err := b.env.addNode(ctx)
	if err != nil {
		return err
	}
	b.progress("data plane with %d Services", services)
	last := services - 1
	endpoint := loadgen.Slice(last, last*b.endpoints, 1).Endpoints[0].Addresses[0]
	direct, err := parseTarget(endpoint)
	if err != nil {
		return err
	}
	blocks, err := b.measureTargets([]target{
		{b.proxies[0].name, nodes[0], loadgen.ServiceAddr(last)}, {b.proxies[1].name, nodes[1], loadgen.ServiceAddr(last)}, {"direct", bare, direct},
	})
	if err != nil {
		return err
	}
	b.results.Planes = append(b.results.Planes, dataPlaneResult{Services: services, Blocks: blocks})
	return nil
}

// progress says what is going on, on standard error.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
