package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

const (
	metricsURL = "http://127.0.0.1:10249/metrics"
	livezURL   = "http://127.0.0.1:10256/livez"
	profileURL = "http://127.0.0.1:10249/debug/pprof/profile"
	// startTimeout bounds the time to the first connection.
	startTimeout = 30 * time.Second
	// Pace of the changes. The measured ones have a pace of their own, so that they meet the others in all their phases.
	toggleEvery  = 70 * time.Millisecond
	changeEvery  = 50 * time.Millisecond
	pokeEvery    = 200 * time.Millisecond
	connectEvery = 5 * time.Millisecond
	// recovery is the time after a change by which its endpoint must have new connections.
	recovery = 30 * time.Second
)

// sample is the state of the process at one time, and what happened since the sample before.
type sample struct {
	at                  time.Duration // since the start
	hostile             bool
	rss                 float64 // MiB
	descriptors         int
	goroutines          int
	processors          float64       // used
	updates             []float64     // from the change of a manifest to the first connection to its endpoint, ms; sorted
	update              stats.Summary // of updates
	connections, failed int64
	livez               int // status
	pluginFailures      int
}

// observe changes the cluster, connects and takes samples until the duration is over or ctx ends.
func (n *node) observe(ctx context.Context, o options) ([]sample, error) {
	if err := n.awaitStart(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := time.Now()
	hostileFrom := begin.Add(calm(o.duration))
	updates := make(chan float64, 1<<16)
	var wg sync.WaitGroup
	do := func(every time.Duration, from time.Time, f func(i int) error) {
		wg.Go(func() {
			if err := repeat(ctx, every, from, f); err != nil {
				cancel(err)
			}
		})
	}
	var pending pendingUpdate
	do(toggleEvery, begin, func(i int) error { return n.measureUpdate(ctx, 1+i%2, &pending, updates) })
	do(connectEvery, begin, func(int) error { n.connect(steadyAddr); return nil }) // counted there
	do(changeEvery, begin, n.cluster.change)
	do(pokeEvery, begin, n.cluster.poke)
	// Some ten revisions of the configuration and some twenty abuses in a run.
	do(o.duration/10, hostileFrom, func(int) error { return n.config.write(true) })
	do(o.duration/20, hostileFrom, func(int) error { return n.cluster.disturb() })
	if o.profile != "" {
		wg.Go(func() {
			if err := n.writeProfile(ctx, o); err != nil {
				cancel(err)
			}
		})
	}

	var samples []sample
	previous := sample{}
	cpu, _ := n.process.TotalCPU()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	fmt.Println(header)
	for last := begin; time.Since(begin) < o.duration; {
		select {
		case <-ctx.Done():
			wg.Wait()
			return samples, context.Cause(ctx)
		case <-n.sluice.Ended():
			cancel(nil)
			wg.Wait()
			return samples, errors.New("sluice ended")
		case now := <-tick.C:
			s, err := n.sample(ctx, &pending, updates)
			used, cpuErr := n.process.TotalCPU()
			if err = errors.Join(err, cpuErr); err != nil {
				cancel(nil)
				wg.Wait()
				return samples, err
			}
			s.at, s.hostile = now.Sub(begin), last.After(hostileFrom)
			s.processors = (used - cpu).Seconds() / now.Sub(last).Seconds()
			total := s
			s.connections, s.failed = s.connections-previous.connections, s.failed-previous.failed
			previous, cpu, last = total, used, now
			samples = append(samples, s)
			fmt.Println(s)
		}
	}
	cancel(nil)
	wg.Wait()
	if err, _ := n.firstError.Load().(error); err != nil {
		fmt.Println("first failed connection:", err)
	}
	return samples, nil
}

// repeat calls f at an interval from a time on, until ctx ends or f fails.
func repeat(ctx context.Context, every time.Duration, from time.Time, f func(i int) error) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(time.Until(from)):
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := f(i); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (n *node) awaitStart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := n.client.Ask("tcp", steadyAddr, time.Second); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no connection through sluice within %s of its start; see its log", startTimeout)
}

// pendingUpdate is when the update under way began, nil between two updates.
type pendingUpdate struct{ atomic.Pointer[time.Time] }

// measureUpdate moves the toggled Service to a Pod and measures the time to the first connection there, in ms.
func (n *node) measureUpdate(ctx context.Context, pod int, pending *pendingUpdate, updates chan<- float64) error {
	begin := time.Now()
	pending.Store(&begin)
	defer pending.Store(nil)
	if err := n.cluster.toggle(pod); err != nil {
		return err
	}
	for ctx.Err() == nil {
		server, err := n.connect(toggleAddr)
		if err == nil && server == fmt.Sprint("p", pod) {
			updates <- milliseconds(time.Since(begin))
			return nil
		}
		if time.Since(begin) > recovery {
			return fmt.Errorf("an endpoint update was not in force within %s", recovery)
		}
	}
	return nil
}

// sample returns the state of the process, with totals for the connections.
func (n *node) sample(ctx context.Context, pending *pendingUpdate, updates <-chan float64) (sample, error) {
	s := sample{rss: n.process.RSS(), connections: n.connections.Load(), failed: n.failed.Load()}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.process))
	if err != nil {
		return s, err
	}
	s.descriptors = len(open)
	for range len(updates) {
		s.updates = append(s.updates, <-updates)
	}
	if begin := pending.Load(); begin != nil && len(s.updates) == 0 {
		s.updates = append(s.updates, milliseconds(time.Since(*begin))) // so far
	}
	s.update = stats.Summarize(s.updates)
	if s.livez, _, err = n.get(ctx, livezURL); err != nil {
		s.livez = 0 // counts as a failure
	}
	status, text, err := n.get(ctx, metricsURL)
	if err != nil || status != http.StatusOK {
		return s, fmt.Errorf("metrics: status %d: %w", status, err)
	}
	s.goroutines = int(metric(text, "go_goroutines"))
	s.pluginFailures = int(metric(text, "sluice_plugin_failures_total"))
	return s, nil
}

// writeProfile waits for the middle third of the time and profiles it.
func (n *node) writeProfile(ctx context.Context, o options) error {
	third := o.duration / 3
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(third):
	}
	client := http.Client{Transport: n.http.Transport, Timeout: third + askTimeout}
	resp, err := client.Get(fmt.Sprintf("%s?seconds=%d", profileURL, int(third.Seconds())))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: status %d: %w", resp.StatusCode, err)
	}
	return os.WriteFile(o.profile, text, 0o644)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// metric returns the sum of a metric's series in the Prometheus text format.
func metric(text, name string) (sum float64) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		fields := strings.Fields(rest)
		if v, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
			sum += v
		}
	}
	return sum
}
