package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// run is sluice on a node, across restarts.
type run struct {
	*scene
	place  *labNode
	dir    string // configuration, checkpoint, socket
	config string
	as     string // kubeconfig

	process *testnet.Program // since the last start
	log     *testnet.Log
	seen    *testnet.Log // output of nft monitor
}

// configuration returns the configuration of a node; more is appended.
func (l *lab) configuration(more string) string {
	return "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: " + pods4 + "," + pods6 + "\n" + more
}

// run starts sluice on a node with its service account, and waits until it has programmed the node. The test's Cleanup
// stops it.
func (s *scene) run(node, config string) *run {
	s.Helper()
	r := s.prepare(node, config)
	r.monitor()
	r.start()
	r.synced()
	return r
}

// prepare returns a run that is not started.
func (s *scene) prepare(node, config string) *run {
	s.Helper()
	r := &run{scene: s, place: s.nodes[node], dir: s.TempDir(), as: s.service}
	r.config = filepath.Join(r.dir, "sluice.yaml")
	r.configure(config)
	s.runs[node] = r
	s.Cleanup(r.cleanup)
	return r
}

// configure replaces the configuration file atomically.
func (r *run) configure(more string) {
	r.Helper()
	temp := filepath.Join(r.dir, ".new")
	r.must(os.WriteFile(temp, []byte(r.configuration(more)), 0o644))
	r.must(os.Rename(temp, r.config))
}

// start starts sluice and does not wait.
func (r *run) start(more ...string) {
	r.Helper()
	args := []string{
		"run", "--node", r.place.name, "--kubeconfig", r.as, "--config", r.config,
		"--checkpoint", filepath.Join(r.dir, "checkpoint"), "--socket", filepath.Join(r.dir, "sock"), "-v", "1", // saved reads it
	}
	r.process, r.log = r.startLogged(r.sluice, append(args, more...)...)
}

// startLogged starts a program on the node.
func (r *run) startLogged(name string, args ...string) (*testnet.Program, *testnet.Log) {
	r.Helper()
	cmd, log := exec.Command(name, args...), &testnet.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := r.place.Node.Start(cmd)
	r.must(err)
	r.Cleanup(p.Kill)
	return p, log
}

// end sends a signal and waits for the exit.
func (r *run) end(by os.Signal) {
	r.Helper()
	if err := r.process.End(by, timeout); by == syscall.SIGTERM && err != nil {
		r.Errorf("%s: ended by SIGTERM: %v\n%s", r.place.name, err, r.log)
	}
}

// cleanup runs sluice cleanup.
func (r *run) cleanup() {
	if out, err := r.command("cleanup"); err != nil {
		r.Errorf("%s: cleanup: %v\n%s", r.place.name, err, out)
	}
}

// command runs a command of sluice on the node.
func (r *run) command(args ...string) (string, error) {
	return r.place.Node.Run("", append([]string{r.sluice}, args...)...)
}

// synced waits until the first plan since the last start is programmed.
func (r *run) synced() { r.Helper(); r.logged("synced all services") }

// logged waits for a log line since the last start.
func (r *run) logged(text string) {
	r.Helper()
	r.eventually(r.place.name+" logs "+text, func() error {
		if strings.Contains(r.log.String(), text) {
			return nil
		}
		return errors.New("not logged")
	})
}

var messages = regexp.MustCompile(`synced all services.* netlink_messages=(\d+)`)

// restartedByKill kills sluice, runs meanwhile, starts sluice again, and returns how many netlink messages the start wrote.
func (r *run) restartedByKill(meanwhile func()) string {
	r.Helper()
	r.end(syscall.SIGKILL)
	if meanwhile != nil {
		meanwhile()
	}
	r.start()
	r.synced()
	m := messages.FindStringSubmatch(r.log.String())
	if m == nil {
		r.Fatalf("%s: no number of messages in its log:\n%s", r.place.name, r.log)
	}
	return m[1]
}

var (
	programmed = regexp.MustCompile(`(?m)^time=(\S+) level=(?:INFO|DEBUG) msg="synced (?:all )?services"`)
	saves      = regexp.MustCompile(`(?m)^sluice_checkpoint_last_success_timestamp_seconds (\S+)$`)
)

// saved waits until the checkpoint has the last change. It is written within a second, or a few on a slow disk.
func (r *run) saved() {
	r.Helper()
	lines := programmed.FindAllStringSubmatch(r.log.String(), -1)
	if len(lines) == 0 {
		r.Fatalf("%s has programmed nothing:\n%s", r.place.name, r.log)
	}
	last, err := time.Parse(time.RFC3339, lines[len(lines)-1][1])
	r.must(err)
	r.eventually("the checkpoint is written", func() error {
		m := saves.FindStringSubmatch(r.metrics())
		if m == nil {
			return errors.New("never")
		}
		at, err := strconv.ParseFloat(m[1], 64)
		if err == nil && at < float64(last.UnixMilli())/1000 {
			err = fmt.Errorf("not since %s", last)
		}
		return err
	})
}

// metrics returns sluice's metrics, or "" if it does not answer.
func (r *run) metrics() string {
	r.Helper()
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return r.place.Node.Dial(ctx, network, netip.MustParseAddrPort("127.0.0.1:10249"))
		},
	}}
	resp, err := client.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// monitor runs nft monitor on the node.
func (r *run) monitor() {
	r.Helper()
	testenv.RequireProgram(r, "nft", "nftables")
	_, r.seen = r.startLogged("nft", "monitor")
	r.eventually("nft monitor listens", func() error {
		r.nft("add table ip heard", "delete table ip heard")
		if strings.Contains(r.seen.String(), "heard") {
			return nil
		}
		return errors.New("heard nothing")
	})
}

// nft runs nft commands on the node.
func (r *run) nft(commands ...string) string {
	r.Helper()
	out, err := r.place.Node.Run("", "nft", strings.Join(commands, "; "))
	if err != nil {
		r.Fatalf("nft %s: %v\n%s", commands, err, out)
	}
	return out
}

// written returns what sluice writes to the node's nftables while f runs, as nft monitor prints it.
func (r *run) written(f func()) string {
	r.Helper()
	before := r.mark()
	f()
	after := r.mark()
	all := r.seen.String()[before:after]
	var out []string
	for _, line := range strings.Split(all, "\n") {
		if line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "W: ") && !strings.Contains(line, "table ip mark") &&
			!strings.Contains(line, "table ip sluice-lock") { // the writer lock, which a restart takes again
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// mark writes a table and returns where the monitor's line of it ends, so that everything written before is in what was printed.
func (r *run) mark() int {
	r.Helper()
	name := fmt.Sprintf("mark%d", time.Now().UnixNano())
	r.nft("add table ip "+name, "delete table ip "+name)
	last := "delete table ip " + name + "\n"
	at := -1
	r.eventually("nft monitor prints "+name, func() error {
		if at = strings.Index(r.seen.String(), last); at < 0 {
			return errors.New("nothing")
		}
		return nil
	})
	return at + len(last)
}

// explain returns the output of sluice explain.
func (r *run) explain(service string) string {
	r.Helper()
	out, err := r.command("explain", "--socket", filepath.Join(r.dir, "sock"), "-n", r.ns, service)
	if err != nil {
		return err.Error() + "\n" + out
	}
	return out
}

// logs returns the logs of all sluices since their last start.
func (s *scene) logs() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.runs)) {
		if r := s.runs[name]; r.log != nil {
			text := r.log.String()
			if len(text) > 8<<10 {
				text = "…" + text[len(text)-8<<10:]
			}
			fmt.Fprintf(&b, "--- sluice on %s\n%s", name, text)
		}
	}
	return b.String()
}

// hostName returns the name of a host for error messages.
func hostName(h *testnet.Host) string {
	if len(h.Addrs) == 0 {
		return h.Name
	}
	return h.Name + " " + h.Addrs[0].String()
}
