// Command demo shows sluice at work: real servers as Pods of three zones in namespaces of their own, the real program,
// real connections, and what becomes of them while the cluster changes. It touches nothing outside its namespaces.
package main

import (
	"context"
	"errors"
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

// maxDuration is how long the demo may take, if something hangs; it takes less than 60 s.
const maxDuration = 3 * time.Minute

func main() {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
	bin := filepath.Dir(exe)
	var p paths
	flag.StringVar(&p.sluice, "sluice", filepath.Join(bin, "sluice"), "the program")
	flag.StringVar(&p.plugins, "plugins", filepath.Join(bin, "plugins"), "folder of the bundled plugins")
	flag.StringVar(&p.runaway, "runaway", filepath.Join(bin, "demo-runaway.wasm"), "the plugin that never comes back")
	flag.StringVar(&p.boutique, "boutique", "examples/boutique", "folder of the manifests and the configuration")
	flag.Parse()
	if err := p.check(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: not everything is there; `make demo` builds it:\n%v\n", err)
		os.Exit(1)
	}
	if err := testnet.Enter(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: it needs network namespaces of its own: run it as root, or where users may make user namespaces.\ndemo: %v\n", err)
		os.Exit(1)
	}
	os.Exit(show(p))
}

// show tells the story and gives the exit code.
func show(p paths) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bounded, cancel := context.WithTimeoutCause(ctx, maxDuration, errors.New("the demo takes too long: something hangs"))
	defer cancel()
	s := newScreen(os.Stdout)
	s.headline("sluice: a Kubernetes Service proxy whose load balancing is decided by WebAssembly plugins")
	d, err := setUp(s, p)
	if err != nil {
		s.status(red, "✗", "setting up: %v", err)
		return 1
	}
	d.paragraph("%d Pods with real TCP servers, a client and a visitor from outside run in network namespaces of their own around the node %s. "+
		"`sluice run` watches a copy of examples/boutique there and programs nftables. Nothing outside of these namespaces is touched.",
		len(d.net.hosts), node)
	err = d.runSteps(bounded)
	switch {
	case ctx.Err() != nil:
		d.problem("stopped before the end")
	case err != nil:
		d.problem("%v", err)
		lines, _ := d.sluice.logLines(0)
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

// summary says how it went.
func (d *demo) summary(took time.Duration) {
	d.printLines("")
	if len(d.problems) > 0 {
		d.status(red, "✗", "%d of the things that this demo checks are wrong:", len(d.problems))
		for _, p := range d.problems {
			d.status("", "-", "%s", p)
		}
		return
	}
	d.status(green, "✓", "%d connections and %d visits by NodePort in %d measurements, none failed, every share as it should be. %.0f s.",
		d.connections, d.visits, d.measurements, took.Seconds())
	if !keepRunning() {
		d.paragraph("Next: `make test` runs every test, and `KEEP=1 make demo` stays up to look around.")
	}
}

// keepRunning tells whether the demo was asked to stay up afterwards.
func keepRunning() bool { return os.Getenv("KEEP") == "1" }

// printHints prints how to see for oneself what is there.
func (d *demo) printHints() {
	enter := "nsenter"
	if os.Getuid() == 0 && !inInitialUserNamespace() {
		enter = "nsenter --preserve-credentials -U"
	}
	pid := d.sluice.cmd.Process.Pid
	ns := func(fd int) string {
		return fmt.Sprintf("%s -t %d --net=/proc/%d/fd/%d", enter, os.Getpid(), os.Getpid(), fd)
	}
	d.headline("It stays up. In another terminal:")
	for _, l := range []string{
		"# the ruleset on the node",
		fmt.Sprintf("%s -n -t %d nft list ruleset", enter, pid),
		"# why each endpoint gets what it gets, and what the kernel holds",
		fmt.Sprintf("%s -n -t %d %s explain --socket %s -n shop catalog", enter, pid, d.paths.sluice, d.sluice.socket),
		"# the shop's page, from the client Pod by ClusterIP and from outside by NodePort",
		fmt.Sprintf("%s curl -s http://%s/", ns(d.net.client.Fd()), d.frontendVIP()),
		fmt.Sprintf("%s curl -s http://%s/", ns(d.net.outside.Fd()), d.nodePort),
		"# what sluice says",
		"tail -f " + d.path(logFile),
		"# the cluster: a Pod of the catalog is not ready any more (change whatever you like), and look again",
		d.unreadyOne(),
	} {
		d.printLines("  " + l)
	}
	d.printLines("", "Ctrl-C ends it.")
}

// unreadyOne is a command that takes the readiness from one of catalog's Pods.
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

// unreadyCommand makes an endpoint in a manifest not ready, in the boutique's way of writing and in the demo's.
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

// inInitialUserNamespace tells root from the root of a user namespace.
func inInitialUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, count uint64
	if err == nil {
		_, err = fmt.Sscan(string(text), &inside, &outside, &count)
	}
	return err == nil && inside == 0 && outside == 0 && count == 1<<32-1
}
