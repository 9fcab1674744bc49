package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
)

// brokenPlugin is the plugin that the last step breaks.
const brokenPlugin = "locality.wasm"

// steps are the steps of the demo, in order.
var steps = []struct {
	title string
	run   func(*demo, context.Context) error
}{
	{"Every zone has three endpoints", (*demo).calm},
	{"A zone loses capacity", (*demo).loss},
	{"Capacity returns, and one endpoint shuts down", (*demo).drain},
	{"New endpoints appear", (*demo).grow},
	{"A plugin breaks", (*demo).breakPlugin},
}

func (d *demo) runSteps(ctx context.Context) error {
	for i, s := range steps {
		d.headline(fmt.Sprintf("%d. %s", i+1, s.title))
		if err := s.run(d, ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, strings.ToLower(s.title[:1])+s.title[1:], err)
		}
		d.pause(ctx, 2)
	}
	return nil
}

// check waits for the decision that the cluster calls for, and measures it.
func (d *demo) check(ctx context.Context, by string) error {
	decided, want, err := d.awaitShares(ctx, 0, by)
	if err != nil {
		return err
	}
	return d.measure(ctx, decided, want)
}

func (d *demo) calm(ctx context.Context) error {
	d.paragraph("A client Pod on %s in %s connects to %s (%s). kube-proxy would send two thirds of its connections to other zones. "+
		"The plugin locality sees that %s can carry its own demand and keeps all connections there.", node, zone, catalog, d.vip, zone)
	return d.check(ctx, byPolicy)
}

func (d *demo) loss(ctx context.Context) error {
	pods, err := d.inZone()
	if err != nil {
		return err
	}
	if err := errors.Join(d.manifests.set(catalog, pods[0].name, notReady), d.manifests.remove(catalog, pods[1].name)); err != nil {
		return err
	}
	d.paragraph("One endpoint in %s fails its readiness probe, another is deleted. One endpoint of seven cannot carry a third of the demand: "+
		"it gets its fair share (3/7), and the rest spills evenly to the zones with spare capacity.", zone)
	return d.check(ctx, byPolicy)
}

func (d *demo) drain(ctx context.Context) error {
	if err := d.manifests.restore(); err != nil {
		return err
	}
	d.paragraph("%s has its three endpoints again.", zone)
	if _, _, err := d.awaitShares(ctx, 0, byPolicy); err != nil {
		return err
	}
	pods, err := d.inZone()
	if err != nil {
		return err
	}
	draining := pods[0].name
	long, err := openLongConnection(ctx, d.net.client, d.vip, draining)
	if err != nil {
		return err
	}
	d.paragraph("A client opens a long-lived connection to %s and keeps using it. Then that Pod is deleted: it terminates but still serves. "+
		"kube-proxy would stop sending it new connections at once; the plugin lifecycle reduces its share in stages of %d s.", draining, d.stage)
	d.picture = &picture{began: time.Now(), draining: draining, peers: map[string]bool{}}
	for _, p := range pods[1:] {
		d.picture.peers[p.name] = true
	}
	err = d.stages(ctx, draining)
	drained := d.picture
	d.picture = nil
	exchanges, lasted, broke := long.end()
	if err = errors.Join(err, broke); err != nil {
		return err
	}
	d.status(green, "✓", "the long-lived connection to %s survived: %d exchanges in %.1f s", draining, exchanges, lasted.Seconds())
	d.printLines("")
	d.paragraph("The drain as a whole, shares of new connections:")
	d.printLines(drained.lines(d.paint)...)
	if d.paths.svg == "" {
		return nil
	}
	d.paragraph("The same as a picture: %s", d.paths.svg)
	return drained.write(d.paths.svg)
}

func (d *demo) stages(ctx context.Context, draining string) error {
	if err := d.manifests.set(catalog, draining, terminating); err != nil {
		return err
	}
	for _, s := range []struct {
		part float64
		text string
	}{
		{1, "Stage 1, 100 %: no change yet."},
		{.5, "Stage 2, 50 %: half the share of its peers. The capacity of the zone shrinks accordingly, so some connections spill."},
		{.1, "Stage 3, 10 %."},
		{0, "After the last stage: no new connections; established ones continue."},
	} {
		d.paragraph("%s", s.text)
		decided, want, err := d.awaitShares(ctx, s.part, byPolicy)
		if err != nil {
			return err
		}
		if err := d.measure(ctx, decided, want); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) grow(ctx context.Context) error {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err
	}
	pods, err := d.inZone()
	if err != nil {
		return err
	}
	sibling := pods[len(pods)-1]
	addrs, err := s.free(sibling.node, 3) // the first is the address of the client
	if err != nil {
		return err
	}
	base := pods[0].name[:strings.LastIndex(pods[0].name, "-")]
	var added []pod
	for i, name := range []string{base + "-new1", base + "-new2"} {
		p := pod{name: name, node: sibling.node, zone: zone, addr: addrs[i+1], port: sibling.port}
		if err := d.net.addCatalog(p); err != nil {
			return err
		}
		added = append(added, p)
	}
	gone := ""
	for _, p := range pods {
		if p.state == terminating {
			gone = p.name
		}
	}
	if err := errors.Join(d.manifests.remove(catalog, gone), d.manifests.addEndpoints(catalog, sibling.name, added)); err != nil {
		return err
	}
	d.paragraph("The drained Pod is gone and two new ones are ready: the zones now have four, three and three. Kubernetes would withdraw topology hints; "+
		"locality keeps all connections in %s, a quarter for each endpoint.", zone)
	return d.check(ctx, byPolicy)
}

func (d *demo) breakPlugin(ctx context.Context) error {
	good := filepath.Join(d.paths.plugins, brokenPlugin)
	target := d.path("plugins/" + brokenPlugin)

	_, mark := d.sluice.LogLines(0)
	d.paragraph("A text file replaces %s. sluice refuses to load it and continues with the previous plugin.", brokenPlugin)
	if err := lab.ReplaceFile(target, []byte("#!/bin/sh\necho this is not a plugin\n")); err != nil {
		return err
	}
	if err := d.showLog(ctx, mark, "ERROR", "plugin locality"); err != nil {
		return err
	}
	if err := d.check(ctx, byPolicy); err != nil {
		return err
	}

	_, mark = d.sluice.LogLines(0)
	d.paragraph("Next, a module that passes every check at load and then loops forever on real requests. The sandbox stops it when it runs out of fuel, "+
		"and the last good decision stays in force: a quarter for each endpoint in %s, not an even spread over all ten.", zone)
	if err := copyFile(target, d.paths.runaway); err != nil {
		return err
	}
	if err := d.showLog(ctx, mark, "policy failed", catalog.String()); err != nil {
		return err
	}
	if err := d.check(ctx, lastGood); err != nil {
		return err
	}

	pods, err := d.inZone()
	if err != nil {
		return err
	}
	d.paragraph("While the plugin is broken, an endpoint fails its readiness probe. It gets no new connections: a last good decision never " +
		"overrides readiness.")
	if err := d.manifests.set(catalog, pods[0].name, notReady); err != nil {
		return err
	}
	if err := d.check(ctx, lastGood); err != nil {
		return err
	}

	d.paragraph("The good plugin is restored and decides again.")
	if err := copyFile(target, good); err != nil {
		return err
	}
	return d.check(ctx, byPolicy)
}

// showLog waits for a line of sluice's log and prints it.
func (d *demo) showLog(ctx context.Context, mark int, words ...string) error {
	for deadline := time.Now().Add(reactionTimeout); time.Now().Before(deadline); {
		if lines, _ := d.sluice.LogLines(mark, words...); len(lines) > 0 {
			d.showLine(lines[0])
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("sluice did not log %[2]q within %[1]s", reactionTimeout, words)
}

// inZone returns the current Pods of the catalog in the zone of the client.
func (d *demo) inZone() ([]pod, error) {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return nil, err
	}
	pods := s.podsIn(catalog, zone)
	if len(pods) < 3 {
		return nil, fmt.Errorf("%s has %d endpoints in %s, the demo needs 3", catalog, len(pods), zone)
	}
	return pods, nil
}
