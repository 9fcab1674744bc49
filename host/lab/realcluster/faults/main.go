// Command faults makes faults on the nodes of a real cluster, or tries policies on its Pods, while clients connect, and writes
// what they saw.
//
//	faults nodes [-run REGEXP] [-proxies sluice,kube-proxy] [-outage 10m] -image ARCHIVE -tag TAG [-results FILE] [-write FILE]
//	faults pods [-run REGEXP] [-proxies sluice,kube-proxy] -image ARCHIVE -tag TAG [-results FILE] [-write FILE -svg FILE]
//
// Rows of the document that are not run stay. The figure needs the results of all of sluice's, which -results keeps. `make
// e2e-faults` and `make experiment-pods` run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// options are the flags.
type options struct {
	run        *regexp.Regexp
	proxies    []realcluster.Proxy
	outage     time.Duration
	image, tag string
	results    string
	write, svg string
}

func main() {
	realcluster.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "nodes" && args[0] != "pods" {
		return errors.New("usage: faults nodes|pods [flags]")
	}
	var o options
	var pattern, names string
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	flags.StringVar(&pattern, "run", "", "those whose name matches")
	flags.StringVar(&names, "proxies", "sluice,kube-proxy", "in this order")
	flags.DurationVar(&o.outage, "outage", 10*time.Minute, "of the API server and etcd, both; of one of them, a fifth of it")
	flags.StringVar(&o.image, "image", "bin/sluice-image.tar", "archive of sluice's image")
	flags.StringVar(&o.tag, "tag", "", "tag of the image in the archive")
	flags.StringVar(&o.results, "results", "", "file that keeps the results of all runs")
	flags.StringVar(&o.write, "write", "", "file in which the table is replaced; none: only print it")
	flags.StringVar(&o.svg, "svg", "", "file for the figure")
	_ = flags.Parse(args[1:])
	var err error
	if o.run, err = regexp.Compile(pattern); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	for p := range strings.SplitSeq(names, ",") {
		o.proxies = append(o.proxies, realcluster.Proxy(p))
	}
	if !testnet.Inside() {
		return testnet.Enter()
	}
	list := faults(o)
	if args[0] == "pods" {
		list = policies()
	}
	rows, err := earlier(o.results)
	if err != nil {
		return err
	}
	for _, proxy := range o.proxies {
		var mine []*scenario
		for _, s := range list {
			if o.run.MatchString(s.name) && (s.only == "" || s.only == proxy) {
				mine = append(mine, s)
			}
		}
		if len(mine) > 0 {
			err = errors.Join(err, runProxy(ctx, o, args[0], proxy, mine, rows))
		}
	}
	table, failed := published(o.write, args[0])
	if failed != nil {
		return errors.Join(err, failed)
	}
	table.add(rows)
	err = errors.Join(err, benchutil.Publish(o.write, args[0], []byte(table.markdown(list))))
	if all := rows.figure(list); o.svg != "" && all != nil {
		err = errors.Join(err, os.WriteFile(o.svg, []byte(chart(all)), 0o644))
	}
	return err
}

// runProxy runs scenarios in a cluster of their own. An error of one does not end the others.
func runProxy(ctx context.Context, o options, kind string, proxy realcluster.Proxy, list []*scenario, rows results) error {
	repo, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-faults-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bed{proxy: proxy}
	b.Cluster, err = realcluster.Start(ctx, realcluster.Config{
		Name: "faults-" + kind + "-" + string(proxy), Dir: filepath.Join(dir, "cluster"), Proxy: proxy, Log: os.Stderr,
		Install: realcluster.Installation{Repo: repo, Image: o.image, Tag: o.tag, Config: configuration, AtOnce: true},
	})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, s := range list {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		r, failed := b.run(ctx, s)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s, %s: %w", proxy, s.name, failed))
			fmt.Fprintf(os.Stderr, "FAILED %s, %s: %v\n", proxy, s.name, failed)
			continue
		}
		fmt.Fprintln(os.Stderr, r)
		rows[key{s.name, proxy}] = r
		if failed := rows.save(o.results); failed != nil {
			return errors.Join(err, failed)
		}
	}
	return err
}
