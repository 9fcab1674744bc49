// Command drain-experiment runs sluice with real servers in network namespaces, and measures what clients and endpoints see of
// rolling restarts, scale-ups and failing endpoints, with the default rules and with policies. It touches nothing outside its
// namespaces.
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
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == serverCommand {
		os.Exit(serve(os.Args[2:]))
	}
	exe, err := os.Executable()
	if err != nil {
		fatal(err)
	}
	bin := filepath.Dir(exe)
	var p paths
	flag.StringVar(&p.sluice, "sluice", filepath.Join(bin, "sluice"), "path of the sluice binary")
	flag.StringVar(&p.plugins, "plugins", filepath.Join(bin, "plugins"), "folder with the bundled plugins")
	mode := flag.String("mode", "nftables", "nftables or ipvs")
	svg := flag.String("svg", "", "file for the figure; none if empty")
	only := flag.String("run", "", "run only experiments whose name matches this regular expression, such as restart.*preStop")
	slower := flag.Int("slower", 1, "multiply all times by this, for a slow machine: the number of connections at a time is constant")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fatal(err)
	}
	if err := testnet.Enter(); err != nil {
		fatal(fmt.Errorf("cannot create network namespaces: run as root, or enable unprivileged user namespaces: %w", err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	z := longForm()
	z.slow(max(1, *slower))
	results, err := runAll(ctx, p, *mode, &z, pattern)
	if err == nil && *svg != "" {
		err = lab.ReplaceFile(*svg, []byte(chart(results, *mode)))
	}
	if err != nil {
		fatal(err)
	}
	for _, r := range results {
		if err := r.check(); err != nil {
			fatal(err)
		}
	}
}

func fatal(err error) {
	fmt.Fprintf(os.Stderr, "drain-experiment: %v\n", err)
	os.Exit(1)
}

// runAll runs the experiments whose group and name match, and prints a line for each.
func runAll(ctx context.Context, p paths, mode string, z *size, pattern *regexp.Regexp) (results []*result, err error) {
	fmt.Printf("mode %s, %s\n%s\n", mode, machine(), header())
	for _, e := range z.experiments() {
		if !pattern.MatchString(e.group + ": " + e.name) {
			continue
		}
		r, err := e.run(ctx, p, mode, z)
		if err != nil {
			return nil, err
		}
		fmt.Println(r.row())
		results = append(results, r)
	}
	if len(results) == 0 {
		return nil, errors.New("no experiment has this name")
	}
	return results, nil
}

// check returns an error if a run has not the result that its policy promises.
func (r *result) check() error {
	if r.expect != nil && !r.expect(r) {
		return fmt.Errorf("%s, %s: %d of %d connections failed, the last one %s after the beginning, and %.0f %% are to new Pods at the end; promised: %s", r.group,
			r.name, r.failedTotal(), r.connections(), r.last.Round(time.Millisecond), 100*r.newShare(r.servers), r.promise)
	}
	return nil
}
