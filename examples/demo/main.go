// Command demo runs sluice with real servers in network namespaces, as Pods of three zones, and measures where real
// connections go while the cluster changes. It changes nothing outside its namespaces. For the status page
// it listens on a port of this machine's loopback address.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// maxDuration bounds the demo if something hangs; normally it takes less than 60 s.
const maxDuration = 3 * time.Minute

func main() {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
	bin := filepath.Dir(exe)
	var p paths
	flag.StringVar(&p.sluice, "sluice", filepath.Join(bin, "sluice"), "path of the sluice binary")
	flag.StringVar(&p.plugins, "plugins", filepath.Join(bin, "plugins"), "folder with the bundled plugins")
	flag.StringVar(&p.runaway, "runaway", filepath.Join(bin, "demo-runaway.wasm"), "path of the plugin that loops forever")
	flag.StringVar(&p.boutique, "boutique", "examples/boutique", "folder with the manifests and the configuration")
	flag.StringVar(&p.svg, "svg", "", "file to write a picture of the drain to")
	flag.Parse()
	if err := p.check(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: files are missing; run `make demo`:\n%v\n", err)
		os.Exit(1)
	}
	if !testnet.Inside() {
		stop := offerPage()
		code, err := testnet.Reexec()
		stop()
		if err != nil {
			fmt.Fprintf(os.Stderr, "demo: cannot create network namespaces: run as root, or enable unprivileged user namespaces.\ndemo: %v\n", err)
			code = 1
		}
		os.Exit(code)
	}
	os.Exit(show(p))
}

// show runs the demo and returns the exit code.
func show(p paths) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bounded, cancel := context.WithTimeoutCause(ctx, maxDuration, fmt.Errorf("the demo did not finish within %s", maxDuration))
	defer cancel()
	s := newScreen(os.Stdout)
	s.headline("sluice: a Kubernetes Service proxy with load-balancing policies in WebAssembly")
	d, err := setUp(s, p)
	if err != nil {
		s.status(red, "✗", "setting up: %v", err)
		return 1
	}
	d.paragraph("%d Pods with real TCP servers, a client Pod and an external client run in network namespaces around the node %s. "+
		"`sluice run` watches a copy of examples/boutique and programs nftables there. Nothing outside these namespaces is changed.",
		len(d.net.hosts), node)
	if url := d.servePage(); url != "" {
		d.paragraph("The node's status page, while the demo runs: %s", url)
	}
	err = d.runSteps(bounded)
	switch {
	case ctx.Err() != nil:
		d.problem("interrupted")
	case err != nil:
		d.problem("%v", err)
		lines, _ := d.sluice.LogLines(0)
		for _, l := range lines[max(0, len(lines)-5):] {
			d.showLine(l)
		}
		fallthrough
	default:
		d.summary(time.Since(d.began))
	}
	if keepRunning() && ctx.Err() == nil {
		d.printHints()
		<-ctx.Done()
		d.printLines("")
	}
	d.tearDown()
	if len(d.problems) > 0 {
		return 1
	}
	return 0
}

// summary prints the result.
func (d *demo) summary(took time.Duration) {
	d.printLines("")
	if len(d.problems) > 0 {
		d.status(red, "✗", "%d checks failed:", len(d.problems))
		for _, p := range d.problems {
			d.status("", "-", "%s", p)
		}
		return
	}
	d.status(green, "✓", "%d connections and %d NodePort requests in %d measurements: none failed, all shares as expected. %.0f s.",
		d.connections, d.visits, d.measurements, took.Seconds())
	if !keepRunning() {
		d.paragraph("Next: `make test` runs all tests; `KEEP=1 make demo` keeps the demo running for exploration.")
	}
}

// keepRunning reports whether the demo should keep running at the end.
func keepRunning() bool { return os.Getenv("KEEP") == "1" }

// printHints prints commands for exploration.
func (d *demo) printHints() {
	enter := "nsenter"
	if os.Getuid() == 0 && !inInitialUserNamespace() {
		enter = "nsenter --preserve-credentials -U"
	}
	pid := d.sluice.PID()
	ns := func(fd int) string {
		return fmt.Sprintf("%s -t %d --net=/proc/%d/fd/%d", enter, os.Getpid(), os.Getpid(), fd)
	}
	d.headline("The demo keeps running. In another terminal:")
	for _, l := range []string{
		"# the ruleset on the node",
		fmt.Sprintf("%s -n -t %d nft list ruleset", enter, pid),
		"# the weight of each endpoint, with reasons, and what is programmed in the kernel",
		fmt.Sprintf("%s -n -t %d %s explain --socket %s -n shop catalog", enter, pid, d.paths.sluice, d.sluice.Socket),
		"# the shop's page, from the client Pod by ClusterIP and from outside by NodePort",
		fmt.Sprintf("%s curl -s http://%s/", ns(d.net.client.Fd()), d.frontendVIP()),
		fmt.Sprintf("%s curl -s http://%s/", ns(d.net.outside.Fd()), d.nodePort),
		"# the log of sluice",
		"tail -f " + d.path(logFile),
		"# make a Pod of the catalog unready (or change any other manifest), then look again",
		d.unreadyOne(),
	} {
		d.printLines("  " + l)
	}
	d.printLines("", "Press Ctrl-C to stop.")
}

// unreadyOne returns a command that makes a Pod of the catalog unready.
func (d *demo) unreadyOne() string {
	s, err := readShop(d.path("manifests"))
	if err == nil {
		for _, p := range s.pods(catalog) {
			if p.state == ready && p.zone == zone {
				return unreadyCommand(d.path("manifests/catalog.yaml"), p.addr)
			}
		}
	}
	return "ls " + d.path("manifests")
}

// unreadyCommand returns a command that makes an endpoint of a manifest unready, as formatted by the boutique or the demo.
func unreadyCommand(file string, addr netip.Addr) string {
	return fmt.Sprintf(`sed -i '/%s\b/,/ready:/s/ready: true/ready: false/' %s`, strings.ReplaceAll(addr.String(), ".", `\.`), file)
}

func (d *demo) frontendVIP() string {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err.Error()
	}
	at, err := s.address(frontend)
	if err != nil {
		return err.Error()
	}
	return at.String()
}

// inInitialUserNamespace reports whether this is the initial user namespace.
func inInitialUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, count uint64
	if err == nil {
		_, err = fmt.Sscan(string(text), &inside, &outside, &count)
	}
	return err == nil && inside == 0 && outside == 0 && count == 1<<32-1
}
