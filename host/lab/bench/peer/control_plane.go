package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// proxyResult has the results of one proxy at one size, one value per repetition or update.
type proxyResult struct {
	Start        []float64 // s: process start → a connection through the last Service
	StartAll     []float64 // s: … through each of probes Services, all over the list
	StartCPU     []float64 // s, until quiet
	StartMiB     []float64 // from the API server
	Restart      []float64 // s: process start → connections follow a change that was made while no proxy ran
	Changes      []float64 // ms: API write → first connection on the new endpoint
	AfterEvent   []float64 // ms of Changes after the event of the same write on a plain watch
	ChangeCPU    []float64 // ms a change, the mean of a repetition
	RSS          []float64 // MiB, after the start
	PeakRSS      []float64
	ChildPeakRSS []float64 // MiB: the most that a child had
	Watches      map[string]int
	Timeline     []window // of the last start
}

// probedServices is how many Services, evenly spread and including the last one, must answer before a node counts as
// programmed, because no proxy guarantees an order.
const probedServices = 20

// updateTimeout limits the wait for an update to take effect.
const updateTimeout = time.Minute

// measureProxy starts a proxy on a new node in a cluster of services Services, updates endpoints, restarts it, and stops it; if
// there are no updates to measure, it is not restarted. The rules of the node stay.
func (b *bench) measureProxy(ctx context.Context, p *proxy, services int, into *proxyResult) (n *node, err error) {
	if n, err = b.env.addNode(ctx); err != nil {
		return nil, err
	}
	if err := b.waitUntilIdle(); err != nil {
		return nil, err
	}
	r, err := p.start(b.env, n)
	if err != nil {
		return nil, err
	}
	defer func() { into.ChildPeakRSS = append(into.ChildPeakRSS, r.stop()) }()
	if err := r.measureStart(services, b.startTimeout, r.observe(b.env.Cluster.PID(binaries.APIServer)), into); err != nil {
		return nil, r.withLog(err)
	}
	if err := r.measureUpdates(ctx, b, into); err != nil {
		return nil, r.withLog(err)
	}
	// By now the proxy has opened all watches, and those of its predecessor have ended.
	watches, err := loadgen.CountWatches(ctx, b.env.Cluster)
	if err != nil {
		return nil, err
	}
	into.Watches = loadgen.AddedWatches(b.env.watches, watches)
	into.PeakRSS = append(into.PeakRSS, r.PeakRSS())
	if p.changes == 0 {
		return n, nil
	}
	return n, b.measureRestart(ctx, r, into)
}

// measureRestart stops the proxy, moves a Service to another endpoint, and starts the proxy again, with its rules in the kernel.
func (b *bench) measureRestart(ctx context.Context, r *runningProxy, into *proxyResult) error {
	r.end()
	if _, _, err := b.updater.Update(ctx, r.node.endpoint((r.changes+1)%2)); err != nil {
		return err
	}
	if err := b.waitUntilIdle(); err != nil {
		return err
	}
	again, err := r.proxy.start(b.env, r.node)
	if err != nil {
		return err
	}
	defer again.stop()
	return again.withLog(r.node.client.Do(func() error {
		at, err := awaitServer(loadgen.ServiceAddr(movingService), '0'+byte((r.changes+1)%2), again.started, again.started.Add(b.startTimeout))
		into.Restart = append(into.Restart, at.Sub(again.started).Seconds())
		return err
	}))
}

// waitUntilIdle waits up to 20 s for an idle machine, so that earlier work such as freeing rules does not affect a start.
func (b *bench) waitUntilIdle() error {
	if b.quick {
		return nil
	}
	const enough, timeout = 0.2, 20 * time.Second
	for until := time.Now().Add(timeout); ; {
		busy, err := benchutil.CPUUtilization(500 * time.Millisecond)
		if err != nil || busy < enough {
			return err
		}
		if time.Now().After(until) {
			b.progress("machine is not idle: %.0f %% CPU utilization with no proxy running", 100*busy)
			return nil
		}
	}
}

// measureStart measures the start of a proxy.
func (r *runningProxy) measureStart(services int, timeout time.Duration, line *timeline, into *proxyResult) (err error) {
	until := r.started.Add(timeout)
	var last, all time.Time
	defer func() {
		windows, lineErr := line.end(all)
		into.Timeline, err = windows, errors.Join(err, lineErr)
	}()
	err = r.node.client.Do(func() (err error) {
		if last, err = awaitServer(loadgen.ServiceAddr(services-1), anyServer, r.started, until); err != nil {
			return err
		}
		for i := range min(probedServices, services) {
			if all, err = awaitServer(loadgen.ServiceAddr(i*services/min(probedServices, services)), anyServer, r.started, until); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.waitUntilIdle(timeout); err != nil {
		return err
	}
	cpu, err := r.TotalCPU()
	if err != nil {
		return err
	}
	received, err := loadgen.Received(r.node.lab.Node)
	if err != nil {
		return err
	}
	into.Start = append(into.Start, last.Sub(r.started).Seconds())
	into.StartAll = append(into.StartAll, all.Sub(r.started).Seconds())
	into.StartCPU = append(into.StartCPU, cpu.Seconds())
	into.StartMiB = append(into.StartMiB, received/(1<<20))
	into.RSS = append(into.RSS, r.RSS())
	return nil
}

// measureUpdates moves a Service from one endpoint to another and back, repeatedly.
func (r *runningProxy) measureUpdates(ctx context.Context, b *bench, into *proxyResult) error {
	if _, _, err := b.updater.Update(ctx, r.node.endpoint(0)); err != nil {
		return err
	}
	if err := r.waitForUpdate(0); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events, err := b.updater.Watch(watching)
	if err != nil {
		return err
	}
	before, err := r.TotalCPU()
	if err != nil {
		return err
	}
	for i := range r.changes {
		begin, at, err := r.measureUpdate(ctx, b, i+1)
		if err != nil {
			return err
		}
		event, err := b.nextEvent(events)
		if err != nil {
			return err
		}
		into.Changes = append(into.Changes, milliseconds(at.Sub(begin)))
		into.AfterEvent = append(into.AfterEvent, milliseconds(at.Sub(event)))
		if err := r.waitForUpdate(i + 1); err != nil {
			return err
		}
	}
	after, err := r.TotalCPU()
	into.ChangeCPU = append(into.ChangeCPU, milliseconds(after-before)/float64(max(r.changes, 1)))
	return err
}

// waitForUpdate waits until an update is complete, and a random time longer, so that the next update is not synchronized
// with the proxy's timers.
func (r *runningProxy) waitForUpdate(i int) error {
	err := r.node.client.Do(func() error {
		now := time.Now()
		_, err := awaitServer(loadgen.ServiceAddr(movingService), '0'+byte(i%2), now, now.Add(updateTimeout))
		return err
	})
	if err != nil {
		return err
	}
	time.Sleep(r.pause + rand.N(20*time.Millisecond))
	return r.waitUntilIdle(updateTimeout)
}

// movingService is the Service whose endpoint is updated.
const movingService = 0

// measureUpdate makes one update and returns the times of the write and of the first connection to the new endpoint.
func (r *runningProxy) measureUpdate(ctx context.Context, b *bench, i int) (begin, at time.Time, err error) {
	write := make(chan time.Time, 1)
	type result struct {
		at  time.Time
		err error
	}
	done, ready := make(chan result, 1), make(chan struct{})
	go func() {
		var res result
		err := r.node.client.Do(func() error {
			close(ready)
			begin := <-write
			res.at, res.err = awaitServer(loadgen.ServiceAddr(movingService), '0'+byte(i%2), begin, begin.Add(updateTimeout))
			return nil
		})
		if err != nil {
			res.err = err
		}
		done <- res
	}()
	select {
	case <-ready:
	case res := <-done:
		return begin, at, res.err
	}
	write <- time.Now()
	begin, _, err = b.updater.Update(ctx, r.node.endpoint(i%2))
	res := <-done
	return begin, res.at, errors.Join(err, res.err)
}

// nextEvent returns when the next event of the updater's watch arrived.
func (b *bench) nextEvent(events <-chan time.Time) (time.Time, error) {
	select {
	case at, ok := <-events:
		if !ok {
			return at, fmt.Errorf("the watch of %s ended", b.updater.Name())
		}
		return at, nil
	case <-time.After(updateTimeout):
		return time.Time{}, fmt.Errorf("no event of %s", b.updater.Name())
	}
}

// measureLowerBounds measures, in milliseconds, from a write to the API server's acknowledgement and to the event on a
// plain watch.
func (b *bench) measureLowerBounds(ctx context.Context, n int) (acked, observed []float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := b.updater.Watch(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range n {
		begin, done, err := b.updater.Update(ctx, testcluster.Endpoint{Addr: loadgen.PodCIDR().Addr().Next(), Node: fmt.Sprint("node-", i)})
		if err != nil {
			return nil, nil, err
		}
		at, err := b.nextEvent(events)
		if err != nil {
			return nil, nil, err
		}
		observed = append(observed, milliseconds(at.Sub(begin)))
		acked = append(acked, milliseconds(done.Sub(begin)))
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
	}
	return acked, observed, nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
