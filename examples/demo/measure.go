package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

func (d *demo) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.problems = append(d.problems, text)
	d.status(red, "✗", "%s", text)
}

// reactionTimeout bounds the reaction of sluice. It takes milliseconds, except for compiling plugins: some seconds of CPU time,
// on a machine that may be busy.
const reactionTimeout = time.Minute

// await polls sluice until its decision on the catalog is as wanted and programmed.
func (d *demo) await(ctx context.Context, what string, wanted func(*decision) bool) (*decision, error) {
	deadline := time.Now().Add(reactionTimeout)
	var last error
	for time.Now().Before(deadline) {
		x, err := d.explain(ctx, catalog)
		if err == nil && wanted(x) && x.checkKernel() == nil {
			return x, nil
		}
		last = err
		if err == nil {
			last = x.checkKernel()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-d.sluice.Ended():
			lines, _ := d.sluice.LogLines(0)
			return nil, fmt.Errorf("sluice ended: %w\n%s", d.sluice.Stop(), strings.Join(lines, "\n"))
		case <-time.After(50 * time.Millisecond):
		}
	}
	if last == nil {
		last = errors.New("its decision is different")
	}
	return nil, fmt.Errorf("sluice did not decide on %[2]s within %[1]s: %[3]w", reactionTimeout, what, last)
}

// awaitShares waits until sluice decides the expected shares for the current cluster, and returns both.
func (d *demo) awaitShares(ctx context.Context, part float64, by string) (*decision, map[string]float64, error) {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return nil, nil, err
	}
	want := expected(zone, s.demand(), s.pods(catalog), part)
	x, err := d.await(ctx, "the expected shares by "+by, func(x *decision) bool {
		for pod, share := range want {
			if math.Abs(x.endpoints[pod].Share-share) > tolerance {
				return false
			}
		}
		return len(x.endpoints) == len(want) && x.by == by
	})
	d.showChange()
	return x, want, err
}

// showChange prints the last line about a change that sluice has logged since the previous call, if any.
func (d *demo) showChange() {
	lines, mark := d.sluice.LogLines(d.mark, `msg="synced services"`)
	if d.mark = mark; len(lines) > 0 {
		d.showLine(lines[len(lines)-1])
	}
}

// showLine prints a line of sluice's log, without its time.
func (d *demo) showLine(line string) {
	if i := strings.Index(line, "level="); i > 0 {
		line = line[i:]
	}
	width, _ := d.size()
	for _, l := range wrap(line, min(width, 110)-11) {
		d.note(yellow, "  sluice │ %s", l)
	}
}

// measure opens connections, shows the table live, and compares the result with the decision of sluice and with the shares
// that are expected from the cluster. A difference is a problem, not an error: the demo continues.
func (d *demo) measure(ctx context.Context, decided *decision, want map[string]float64) error {
	s, err := readShop(d.path("manifests"))
	if err != nil {
		return err
	}
	b := newTable(s.pods(catalog), decided)
	l, done := start(ctx, d.net.client, d.vip, connections)
	visited := make(chan error, 1)
	go func() { visited <- d.net.visit(ctx, d.nodePort, visits) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(100 * time.Millisecond):
		}
		b.count(l.snapshot().counts)
		width, _ := d.size()
		d.draw(b.lines(d.paint, width))
	}
	r := l.snapshot()
	visitErr := <-visited
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	after, err := d.explain(ctx, catalog)
	if err != nil {
		return err
	}
	width, _ := d.size()
	d.printLines(b.lines(d.paint, width)...)
	d.connections += r.total
	d.visits += visits
	d.measurements++
	if d.picture != nil {
		d.picture.add(r)
	}
	before := len(d.problems)
	if !decided.same(after) {
		d.problem("the decision changed during the measurement: %d connections took too long on this machine (%.1f s)", connections, r.took.Seconds())
	}
	if visitErr != nil {
		d.problem("NodePort: %v", visitErr)
	}
	statistic, freedom, p := d.judge(r, decided, want)
	if len(d.problems) == before {
		d.status(green, "✓", "%d connections in %.1f s, none failed; χ² %.1f with %d degrees of freedom, p = %.2g; %d NodePort requests",
			r.total, r.took.Seconds(), statistic, freedom, p, visits)
	}
	return nil
}

// visits is the number of NodePort requests during each measurement.
const visits = 100

// judge compares the counts with the decision of sluice, and both with the expected shares.
func (d *demo) judge(r result, decided *decision, want map[string]float64) (statistic float64, freedom int, p float64) {
	if r.failed > 0 {
		d.problem("%d of %d connections failed; the first one %v", r.failed, r.total+r.failed, r.first)
	}
	var counts []int
	var shares []float64
	for _, pod := range slices.Sorted(maps.Keys(decided.endpoints)) {
		counts = append(counts, r.counts[pod])
		shares = append(shares, decided.endpoints[pod].Share)
	}
	for _, server := range slices.Sorted(maps.Keys(r.counts)) {
		if _, ok := decided.endpoints[server]; !ok {
			d.problem("%d connections went to %s, which is not an endpoint", r.counts[server], server)
		}
	}
	statistic, freedom, p = chi2(counts, shares)
	if p < significance {
		d.problem("the measured shares differ from the decision: χ² %.1f with %d degrees of freedom, p = %.1g", statistic, freedom, p)
	}
	for _, pod := range slices.Sorted(maps.Keys(want)) {
		measured := float64(r.counts[pod]) / float64(max(1, r.total))
		if deviates(measured, want[pod], r.total) {
			d.problem("%s: expected %.1f %%, measured %.1f %%", pod, 100*want[pod], 100*measured)
		}
	}
	return statistic, freedom, p
}

// newTable returns the table of endpoints before the first connection.
func newTable(pods []pod, decided *decision) *table {
	b := &table{}
	for _, p := range pods {
		e := decided.endpoints[p.name]
		b.rows = append(b.rows, row{name: p.name, zone: p.zone, state: string(p.state), wanted: e.Share, why: decided.why(p.name)})
	}
	return b
}

func (b *table) count(counts map[string]int) {
	for i := range b.rows {
		b.rows[i].counted = counts[b.rows[i].name]
	}
}

// pause leaves time to read, if the demo is not late.
func (d *demo) pause(ctx context.Context, seconds float64) {
	if !d.live || time.Since(d.began) > 40*time.Second {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
}
