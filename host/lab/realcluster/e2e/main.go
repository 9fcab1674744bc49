// Command e2e runs Kubernetes' own network tests in real clusters, against kube-proxy and then against sluice in the same
// cluster, and compares them spec by spec. It fails if kube-proxy passes a spec that sluice does not pass. As root.
//
// Its tables are in a document, where those of earlier runs stay: of other clusters and proxies, and, if only a part of the suite
// is run, of other parts. Ginkgo's reports and logs are in a folder, until the next run of the same.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

type options struct {
	families string
	proxies  string
	workers  int
	procs    int
	attempts int
	focus    string
	skip     string
	liberal  bool
	mode     string
	kernel   string
	image    string
	tag      string
	results  string
	write    string
}

// The proxies' modes.
const (
	nftables = "nftables"
	ipvs     = "ipvs"
)

// everything is the focus of a whole run.
const everything = `\[sig-network\]`

func main() {
	realcluster.Enter()
	var o options
	flag.StringVar(&o.families, "families", "ipv4,dual,ipv6", "IP families of the clusters")
	flag.StringVar(&o.proxies, "proxies", "kube-proxy,sluice", "Service proxies")
	flag.IntVar(&o.workers, "workers", 6, "nodes beside the control plane's; some specs need two in each of three zones")
	flag.IntVar(&o.procs, "procs", 5, "specs at a time")
	flag.IntVar(&o.attempts, "attempts", 2, "how often a spec that fails is tried; the table says how often it was")
	flag.StringVar(&o.focus, "focus", everything, "regular expression of the specs to run")
	flag.StringVar(&o.skip, "skip", "", "regular expression of specs to leave out, beside those that cannot run here")
	flag.BoolVar(&o.liberal, "liberal", false, "conntrack.tcpBeLiberal of both proxies")
	flag.StringVar(&o.mode, "mode", nftables, "mode of both proxies: nftables or ipvs, which needs a kernel with IPVS")
	flag.StringVar(&o.kernel, "kernel", "", "workers are guests of this test kernel, for example 6.12, which has IPVS and SCTP")
	flag.StringVar(&o.image, "image", "bin/sluice-image.tar", "archive of sluice's image")
	flag.StringVar(&o.tag, "tag", "", "tag of the image in the archive")
	flag.StringVar(&o.results, "results", "bin/e2e", "folder of reports and logs")
	flag.StringVar(&o.write, "write", "", "document whose tables the runs are added to, between the markers")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

func (o options) run() error {
	if err := testnet.Enter(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := readTables(o.write); err != nil { // it would be a pity after an hour
		return err
	}
	var done []run
	var failed error
	for _, f := range list(o.families) {
		if err := o.family(ctx, realcluster.Family(f), &done); err != nil {
			failed = fmt.Errorf("family %s: %w", f, err)
			break
		}
	}
	if len(done) == 0 {
		return failed
	}
	t, err := readTables(o.write)
	if err != nil {
		return errors.Join(failed, err)
	}
	for _, r := range done {
		t.add(r)
	}
	return errors.Join(failed, benchutil.Publish(o.write, marker, []byte(t.markdown())), t.compare())
}

// family runs the suite against all proxies, in one cluster, and appends the runs to done.
func (o options) family(ctx context.Context, family realcluster.Family, done *[]run) error {
	suite, err := programs.BuildSuite(ctx, os.Stderr)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	parent := filepath.Join(cache, "sluice", "e2e")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(parent, "cluster-")
	if err != nil {
		return err
	}
	name := filepath.Base(dir) // two runs do not disturb each other
	c, err := realcluster.Start(ctx, realcluster.Config{Name: name, Dir: dir, Workers: o.workers, Kernel: o.kernel, Family: family, Mode: o.mode, Liberal: o.liberal, Log: os.Stderr})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := load(ctx, c, suite, o.mode); err != nil {
		return err
	}
	defer balance(ctx, c)()
	for _, proxy := range list(o.proxies) {
		r := run{Family: string(family), Proxy: proxy, Mode: o.mode, Workers: o.workers, Liberal: o.liberal, Guests: o.kernel, Focus: o.focus, Skip: o.skip}
		switch realcluster.Proxy(proxy) {
		case realcluster.KubeProxy:
			r.Version = programs.SuiteVersion
		case realcluster.Sluice:
			r.Version = o.tag
			in := realcluster.Installation{Repo: ".", Image: o.image, Tag: o.tag, Config: "mode: " + o.mode + "\n" + nodePorts, AtOnce: true}
			if err := c.Install(ctx, in); err != nil {
				return err
			}
		default:
			return fmt.Errorf("proxy %q: it must be kube-proxy or sluice", proxy)
		}
		if r, err = r.test(ctx, c, suite, o); err != nil {
			return fmt.Errorf("%s: %w", proxy, err)
		}
		*done = append(*done, r)
	}
	return nil
}
