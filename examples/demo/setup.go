package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// node is the one that sluice runs on, and zone where it is.
const (
	node = "node-a1"
	zone = "zone-a"
)

// demo is everything at work.
type demo struct {
	*screen
	paths     paths
	dir       string // temporary
	manifests *manifests
	net       *topology
	sluice    *sluice
	vip       netip.AddrPort // of catalog
	nodePort  netip.AddrPort // of frontend
	began     time.Time
	stage     int // seconds of each stage of a drain
	mark      int // in sluice's log, up to where its changes were shown

	connections, visits, measurements int
	problems                          []string
}

// paths are what the demo is made of.
type paths struct{ sluice, plugins, runaway, boutique string }

func (p paths) check() error {
	var errs []error
	if !isProgram(p.sluice) {
		errs = append(errs, fmt.Errorf("%s is not built", p.sluice))
	}
	for _, file := range []string{filepath.Join(p.plugins, brokenPlugin), filepath.Join(p.plugins, "staged-drain.wasm"), p.runaway} {
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("%s is not built", file))
		}
	}
	if _, err := os.Stat(filepath.Join(p.boutique, "sluice.yaml")); err != nil {
		errs = append(errs, fmt.Errorf("%s is not the boutique: run this where the repository is", p.boutique))
	}
	return errors.Join(errs...)
}

// setUp copies the boutique, builds its network, and starts sluice on it.
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

// configure writes the demo's configuration. How long a stage of a drain has to be follows from how fast this machine
// makes connections, tried here straight to a Pod.
func (d *demo) configure() error {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err
	}
	p := s.pods(catalog)[0]
	var r result
	const tries = 1500
	for range 2 { // the first time is to warm up
		l, done := start(context.Background(), d.net.client, netip.AddrPortFrom(p.addr, p.port), tries)
		<-done
		if r = l.snapshot(); r.failed > 0 {
			return fmt.Errorf("%d of %d connections to the Pod %s failed, without any Service: %w", r.failed, tries, p.name, r.first)
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
	return replaceFile(d.path("sluice.yaml"), text)
}

// stageFor is how many seconds a stage needs for a measurement that takes so long: four times that, as other programs may want
// the machine too.
func stageFor(measurement time.Duration) int {
	return min(max(4, int(math.Ceil(4*measurement.Seconds()))), 12)
}

// logFile is where sluice's log goes, in the demo's folder.
const logFile = "sluice.log"

func (d *demo) run() (err error) {
	d.sluice, err = startSluice(d.net.Node, d.paths.sluice, d.path("sluice.sock"), d.path(logFile),
		"--checkpoint", d.path("checkpoint.json"), "--source", d.path("manifests"), "--config", d.path("sluice.yaml"), "--node", node)
	return err
}

// tearDown stops and removes everything. What went wrong doing so is a problem too.
func (d *demo) tearDown() {
	if d.sluice != nil {
		if err := d.sluice.stop(); err != nil {
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

// isProgram tells whether a file can be run.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
