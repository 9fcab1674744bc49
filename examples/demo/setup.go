package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
)

// node is the node of sluice, and zone its zone.
const (
	node = "node-a1"
	zone = "zone-a"
)

// demo is a running demo.
type demo struct {
	*screen
	paths     paths
	dir       string // temporary
	manifests *manifests
	net       *topology
	page      net.Listener // forwards to the status page; nil: not
	sluice    *lab.Sluice
	vip       netip.AddrPort // of catalog
	nodePort  netip.AddrPort // of frontend
	began     time.Time
	stage     int // duration of a drain stage in seconds
	mark      int // position in sluice's log after the last change shown

	picture                           *picture // of the drain while it goes on; else nil
	connections, visits, measurements int
	problems                          []string
}

// paths of the files that the demo uses.
type paths struct{ sluice, plugins, runaway, boutique, svg string }

func (p paths) check() error {
	var errs []error
	if !isProgram(p.sluice) {
		errs = append(errs, fmt.Errorf("%s is not built", p.sluice))
	}
	for _, file := range []string{filepath.Join(p.plugins, brokenPlugin), filepath.Join(p.plugins, "lifecycle.wasm"), p.runaway} {
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("%s is not built", file))
		}
	}
	if _, err := os.Stat(filepath.Join(p.boutique, "sluice.yaml")); err != nil {
		errs = append(errs, fmt.Errorf("%s is not the boutique: run this in the root of the repository", p.boutique))
	}
	return errors.Join(errs...)
}

// setUp copies the boutique, builds its network and starts sluice.
func setUp(s *screen, p paths) (_ *demo, err error) {
	d := &demo{screen: s, paths: p, began: time.Now()}
	if d.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.tearDown()
		}
	}()
	for _, step := range []func() error{d.copyBoutique, d.build, d.configure, d.run} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

func (d *demo) copyBoutique() error {
	if err := errors.Join(
		copyTree(d.path("manifests"), filepath.Join(d.paths.boutique, "manifests")),
		os.Mkdir(d.path("plugins"), 0o755),
	); err != nil {
		return err
	}
	built, err := filepath.Glob(filepath.Join(d.paths.plugins, "*.wasm"))
	for _, file := range built {
		err = errors.Join(err, copyFile(d.path("plugins/"+filepath.Base(file)), file))
	}
	if err != nil {
		return err
	}
	d.manifests, err = openManifests(d.path("manifests"))
	return err
}

func (d *demo) build() error {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err
	}
	if d.vip, err = s.address(catalog); err != nil {
		return err
	}
	if d.nodePort, err = s.nodePort(frontend, node); err != nil {
		return err
	}
	d.net, err = newTopology(s, node)
	return err
}

// configure writes the demo's configuration. The duration of a drain stage depends on the rate of connections on this
// machine, which it measures directly to a Pod.
func (d *demo) configure() error {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err
	}
	p := s.pods(catalog)[0]
	var r result
	const tries = 1500
	for range 2 { // the first round warms up
		l, done := start(context.Background(), d.net.client, netip.AddrPortFrom(p.addr, p.port), tries)
		<-done
		if r = l.snapshot(); r.failed > 0 {
			return fmt.Errorf("%d of %d direct connections to Pod %s failed: %w", r.failed, tries, p.name, r.first)
		}
	}
	d.stage = stageFor(r.took * connections / tries)
	text, err := os.ReadFile(filepath.Join(d.paths.boutique, "sluice.yaml"))
	if err == nil {
		text, err = adapt(text, d.path("plugins"), d.path("cache"), d.stage)
	}
	if err != nil {
		return err
	}
	return lab.ReplaceFile(d.path("sluice.yaml"), text)
}

// stageFor returns the duration of a stage in seconds: four times that of a measurement, as the machine may be busy.
func stageFor(measurement time.Duration) int {
	return min(max(4, int(math.Ceil(4*measurement.Seconds()))), 12)
}

// logFile is the name of sluice's log in the demo's folder.
const logFile = "sluice.log"

func (d *demo) run() (err error) {
	d.sluice, err = lab.StartSluice(d.net.Node, d.paths.sluice, d.path("sluice.sock"), d.path(logFile),
		"--checkpoint", d.path("checkpoint.json"), "-v", "1", "--source", d.path("manifests"), "--config", d.path("sluice.yaml"), "--node", node)
	return err
}

// tearDown stops and removes everything. An error is recorded as a problem.
func (d *demo) tearDown() {
	if d.page != nil {
		_ = d.page.Close()
	}
	if d.sluice != nil {
		if err := d.sluice.Stop(); err != nil {
			d.problem("%v", err)
		}
	}
	if d.net != nil {
		d.net.close()
	}
	if err := os.RemoveAll(d.dir); err != nil {
		d.problem("%v", err)
	}
}

// isProgram reports whether a file is executable.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
