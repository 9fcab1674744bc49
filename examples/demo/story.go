package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// brokenPlugin is the one that the last step breaks.
const brokenPlugin = "zone-spill.wasm"

// steps is the steps in their order.
var steps = []struct {
	title string
	tell  func(*demo, context.Context) error
}{
	{"Every zone has three endpoints", (*demo).calm},
	{"A zone loses capacity", (*demo).loss},
	{"Capacity returns, and one endpoint shuts down", (*demo).drain},
	{"New endpoints appear", (*demo).grow},
	{"A broken plugin is put in", (*demo).breakPlugin},
}

func (d *demo) runSteps(ctx context.Context) error {
	for i, s := range steps {
		d.headline(fmt.Sprintf("%d. %s", i+1, s.title))
		if err := s.tell(d, ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, strings.ToLower(s.title[:1])+s.title[1:], err)
		}
		d.pause(ctx, 2)
	}
	return nil
}

// check waits for what is expected of the cluster as it is, and measures it.
func (d *demo) check(ctx context.Context, by string) error {
	said, want, err := d.awaitShares(ctx, 0, by)
	if err != nil {
		return err
	}
	return d.measure(ctx, said, want)
}

func (d *demo) calm(ctx context.Context) error {
	d.paragraph("A client Pod on %s, in %s, connects to %s (%s). kube-proxy would send two thirds of its connections to other zones. "+
		"The policy's plugin zone-spill sees that %s can carry its own demand, and keeps them here.", node, zone, catalog, d.vip, zone)
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
	d.paragraph("One endpoint in %s fails its readiness probe, another is deleted. One of seven cannot carry a third of the demand: "+
		"it gets what is fair (3/7), and the rest spills evenly to the zones that have room.", zone)
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
	leaving := pods[0].name
	long, err := openLongConnection(ctx, d.net.client, d.vip, leaving)
	if err != nil {
		return err
	}
	d.paragraph("A long connection to %s is opened and kept busy. Then that Pod is deleted: it terminates, and still serves. "+
		"kube-proxy would send nobody there from now on; the plugin staged-drain takes its share away in stages of %d s.", leaving, d.stage)
	err = d.stages(ctx, leaving)
	said, lasted, broke := long.end()
	if err = errors.Join(err, broke); err != nil {
		return err
	}
	d.status(green, "✓", "the long connection to %s survived all of it: %d exchanges in %.1f s", leaving, said, lasted.Seconds())
	return nil
}

func (d *demo) stages(ctx context.Context, leaving string) error {
	if err := d.manifests.set(catalog, leaving, terminating); err != nil {
		return err
	}
	for _, s := range []struct {
		part  float64
		about string
	}{
		{1, "First 100 %: as if nothing had happened."},
		{.5, "Then 50 %: half of what its peers get. The zone's capacity shrinks with it, so a little spills."},
		{.1, "Then 10 %: a trickle."},
		{0, "Then nothing: no new connection, and what is established goes on."},
	} {
		d.paragraph("%s", s.about)
		said, want, err := d.awaitShares(ctx, s.part, byPolicy)
		if err != nil {
			return err
		}
		if err := d.measure(ctx, said, want); err != nil {
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
	beside := pods[len(pods)-1]
	addrs, err := s.free(beside.node, 3) // on the client's node, the first is the client's
	if err != nil {
		return err
	}
	base := pods[0].name[:strings.LastIndex(pods[0].name, "-")]
	var added []pod
	for i, name := range []string{base + "-new1", base + "-new2"} {
		p := pod{name: name, node: beside.node, zone: zone, addr: addrs[i+1], port: beside.port}
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
	if err := errors.Join(d.manifests.remove(catalog, gone), d.manifests.addEndpoints(catalog, beside.name, added)); err != nil {
		return err
	}
	d.paragraph("The drained Pod is gone, and two new ones are ready: four, three and three. Hints for zones would now be given up by the cluster; "+
		"zone-spill keeps all connections in %s, a quarter for each endpoint.", zone)
	return d.check(ctx, byPolicy)
}

func (d *demo) breakPlugin(ctx context.Context) error {
	good := filepath.Join(d.paths.plugins, brokenPlugin)
	target := d.path("plugins/" + brokenPlugin)

	_, mark := d.sluice.logLines(0)
	d.paragraph("Somebody copies a text file over %s. sluice refuses it before it is in use, and goes on with what it has.", brokenPlugin)
	if err := replaceFile(target, []byte("#!/bin/sh\necho this is not a plugin\n")); err != nil {
		return err
	}
	if err := d.showLog(ctx, mark, "ERROR", "plugin zone-spill"); err != nil {
		return err
	}
	if err := d.check(ctx, byPolicy); err != nil {
		return err
	}

	_, mark = d.sluice.logLines(0)
	d.paragraph("Now a module that passes every check and then loops for ever when it is asked about real traffic. The sandbox stops it when its fuel is "+
		"used up, and the last good decision stays: a quarter for each endpoint in %s, and not an even spread over all ten.", zone)
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
	d.paragraph("While the plugin is broken, an endpoint fails its readiness probe. It gets nothing from then on: a last good decision is never " +
		"a reason to send somebody to a dead Pod.")
	if err := d.manifests.set(catalog, pods[0].name, notReady); err != nil {
		return err
	}
	if err := d.check(ctx, lastGood); err != nil {
		return err
	}

	d.paragraph("The good plugin is put back, and decides again.")
	if err := copyFile(target, good); err != nil {
		return err
	}
	return d.check(ctx, byPolicy)
}

// showLog waits for a line of sluice's log and shows it.
func (d *demo) showLog(ctx context.Context, mark int, words ...string) error {
	for deadline := time.Now().Add(reactionTimeout); time.Now().Before(deadline); {
		if lines, _ := d.sluice.logLines(mark, words...); len(lines) > 0 {
			d.showLine(lines[0])
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("waited %s for sluice to log %q", reactionTimeout, words)
}

// inZone are the catalog's Pods in the zone of the client, as they are now.
func (d *demo) inZone() ([]pod, error) {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return nil, err
	}
	pods := s.podsIn(catalog, zone)
	if len(pods) < 3 {
		return nil, fmt.Errorf("the boutique's %s has %d endpoints in %s: the story needs 3", catalog, len(pods), zone)
	}
	return pods, nil
}
