package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// size is what an experiment is run with. The long form is in the README; tests run a short one.
type size struct {
	pods, batch  int // Pods of the Service, and how many are restarted at once
	clients      int // with short connections; clients ÷ pods is the load of a Pod
	long         int // clients with long connections, in the scale-up of those
	limit        int // connections that a Pod serves at a time
	hold         time.Duration
	startup      time.Duration // of a Pod, until it is ready
	preStop      time.Duration // sleep of a Pod before SIGTERM
	stages       []stage       // of a drain
	connections  int           // at least so many in the rolling restart
	warmUp       time.Duration // of a new Pod, in the scale-up, until it serves limit connections
	slowStart    int           // seconds until a new Pod is no longer new, for lifecycle
	after        time.Duration // how long the load goes on after a scale-up of short connections, and after the failure of an endpoint
	timeout      time.Duration // of a client
	failTimeout  time.Duration // of a client in the outlier experiment
	sampleEvery  time.Duration
	sliceDelay   time.Duration
	stopAccepted time.Duration // from SIGTERM
}

// longForm returns the size of `make experiment`.
func longForm() size {
	return size{
		pods: 12, batch: 4, clients: 2400, long: 1200, limit: 280, hold: time.Second, startup: 3 * time.Second, preStop: 10 * time.Second,
		stages:      []stage{{100, 5}, {50, 2}, {10, 2}},
		connections: 100_000, warmUp: 12 * time.Second, slowStart: 15, after: 20 * time.Second,
		timeout: 10 * time.Second, failTimeout: 4 * time.Second, sampleEvery: 250 * time.Millisecond,
		sliceDelay: 250 * time.Millisecond, stopAccepted: 50 * time.Millisecond,
	}
}

// stage is a stage of a drain.
type stage struct{ percent, seconds int }

// slow multiplies the times by a factor, all but those of the control plane.
func (z *size) slow(factor int) {
	for _, d := range []*time.Duration{&z.hold, &z.startup, &z.preStop, &z.warmUp, &z.after, &z.timeout, &z.failTimeout} {
		*d *= time.Duration(factor)
	}
	z.slowStart *= factor
	for i := range z.stages {
		z.stages[i].seconds *= factor
	}
}

// drain returns lifecycle with its settings for a drain.
func (z *size) drain() step {
	var stages []string
	for _, s := range z.stages {
		stages = append(stages, fmt.Sprintf("{percent: %d, duration: %ds}", s.percent, s.seconds))
	}
	return step{"lifecycle", "{drain: {stages: [" + strings.Join(stages, ", ") + "]}}"}
}

// server returns the server of a Pod.
func (z *size) server() server {
	return server{limit: z.limit, cold: z.limit, stopAccepting: z.stopAccepted, grace: time.Minute}
}

// experiment is one run of a Service under load.
type experiment struct {
	group, name string
	chain       []step
	servers     int // at the beginning
	clients     int
	long        int
	timeout     time.Duration
	act         func(ctx context.Context, c *cluster, l *load) error
	// promise is what the policy promises, and expect whether it is kept. nil: nothing.
	promise string
	expect  func(*result) bool
}

// never promises that no connection fails.
func (e *experiment) never() *experiment {
	e.promise, e.expect = "none", func(r *result) bool { return r.failedTotal() == 0 }
	return e
}

// within promises that no connection fails that begins later than this after the first action.
func (e *experiment) within(d time.Duration) *experiment {
	e.promise, e.expect = fmt.Sprintf("none that begins later than %s after the failure", d), func(r *result) bool { return r.lastBegan-r.acted() <= d }
	return e
}

// balances promises that no connection fails, that new Pods have at most this part of the connections at the end, and that no Pod
// has ever had more than most of them.
func (e *experiment) balances(share, most float64) *experiment {
	e.promise = fmt.Sprintf("none, at most %.0f %% to new Pods at the end, and never more than %.0f %% to one Pod", 100*share, 100*most)
	e.expect = func(r *result) bool {
		return r.failedTotal() == 0 && r.newShare(e.servers) <= share && r.most() <= int(most*float64(e.clients))
	}
	return e
}

// acted returns when the experiment began to act.
func (r *recorder) acted() time.Duration {
	if len(r.marks) == 0 {
		return 0
	}
	return r.marks[0].at
}

// result is what an experiment has measured.
type result struct {
	*experiment
	*recorder
	took time.Duration
}

// run runs an experiment.
func (e *experiment) run(ctx context.Context, p paths, mode string, z *size) (r *result, err error) {
	c, err := newCluster(p, mode, z.sliceDelay, e.chain)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", e.group, e.name, err)
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.createReady(ctx, e.servers, z.server()); err != nil {
		return nil, err
	}
	if err := c.answering(); err != nil {
		return nil, err
	}
	l := &load{host: c.client, to: vip, short: e.clients, long: e.long, hold: z.hold, check: z.hold, timeout: e.timeout, record: newRecorder(z.sampleEvery)}
	ended := make(chan error, 1)
	go func() { ended <- l.run() }()
	err = e.act(ctx, c, l)
	l.stop()
	if err = errors.Join(err, <-ended); err != nil {
		return nil, fmt.Errorf("%s, %s: %w", e.group, e.name, err)
	}
	return &result{e, l.record, time.Since(l.record.began)}, nil
}

// answering waits until the Service answers.
func (c *cluster) answering() error {
	for end := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		_, err := c.client.Ask("tcp", vip, time.Second)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// sleep waits, unless ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// restart restarts all Pods as a Deployment with maxUnavailable does: it deletes a batch and creates as many, and goes on when
// those are ready. It begins again until there were enough connections, and returns when the last deleted Pod is gone.
func (z *size) restart(preStop time.Duration, connections int) func(context.Context, *cluster, *load) error {
	return func(ctx context.Context, c *cluster, l *load) error {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var failed error
		defer wg.Wait()
		if err := sleep(ctx, 2*z.hold); err != nil {
			return err
		}
		for rollouts := 0; rollouts == 0 || l.finished.Load() < int64(connections); rollouts++ {
			c.mu.Lock()
			var old []*pod
			for _, p := range c.pods {
				if p.ready {
					old = append(old, p)
				}
			}
			c.mu.Unlock()
			for len(old) > 0 {
				batch := old[:min(z.batch, len(old))]
				old = old[len(batch):]
				l.record.mark(fmt.Sprintf("%d Pods restart", len(batch)))
				var fresh []*pod
				for _, p := range batch {
					wg.Go(func() {
						err := c.delete(ctx, p, preStop)
						mu.Lock()
						defer mu.Unlock()
						failed = errors.Join(failed, err)
					})
				}
				for range batch {
					p, err := c.create(z.server())
					if err != nil {
						return err
					}
					fresh = append(fresh, p)
				}
				if err := sleep(ctx, z.startup); err != nil {
					return err
				}
				if err := c.ready(ctx, fresh...); err != nil {
					return err
				}
				if err := sleep(ctx, z.hold); err != nil { // minReadySeconds
					return err
				}
			}
		}
		wg.Wait()
		return errors.Join(failed, sleep(ctx, 2*z.hold))
	}
}

// scaleUp doubles the Pods after a time, and returns another time later. The new Pods are cold.
func (z *size) scaleUp(before, after time.Duration) func(context.Context, *cluster, *load) error {
	return func(ctx context.Context, c *cluster, l *load) error {
		if err := sleep(ctx, before); err != nil {
			return err
		}
		cold := z.server()
		cold.cold, cold.warmUp = z.limit/10, z.warmUp
		l.record.mark(fmt.Sprintf("%d new Pods", len(c.pods)))
		if err := c.createReady(ctx, len(c.pods), cold); err != nil {
			return err
		}
		return sleep(ctx, after)
	}
}

// slowJoins adds a Pod to which connections last three times as long.
func (z *size) slowJoins(ctx context.Context, c *cluster, l *load) error {
	if err := sleep(ctx, 5*z.hold); err != nil {
		return err
	}
	slow := z.server()
	slow.delay = 2 * z.hold
	l.record.mark("a slow Pod")
	if err := c.createReady(ctx, 1, slow); err != nil {
		return err
	}
	return sleep(ctx, 45*z.hold)
}

// silence cuts a Pod off.
func (z *size) silence(ctx context.Context, c *cluster, l *load) error {
	if err := sleep(ctx, 4*z.hold); err != nil {
		return err
	}
	l.record.mark(c.pods[0].name + " is silent")
	if err := c.pods[0].host.Silence(); err != nil {
		return err
	}
	return sleep(ctx, z.after)
}

// experiments returns all experiments.
func (z *size) experiments() []*experiment {
	drain := []step{z.drain()}
	slow := step{"lifecycle", fmt.Sprintf("{warm: {duration: %ds}}", z.slowStart)}
	rebalance := step{"rebalance", "{maxShedPercentPerMinute: 50, duration: 1m, delay: 10s, jitter: 0s}"}
	restart := func(name string, chain []step, preStop time.Duration, connections int) *experiment {
		return &experiment{group: "rolling restart", name: name, chain: chain, servers: z.pods, clients: z.clients, timeout: z.timeout,
			act: z.restart(preStop, connections)}
	}
	scale := func(name string, chain ...step) *experiment {
		return &experiment{group: "scale-up", name: name, chain: chain, servers: z.pods * 2 / 3, clients: z.clients / 2, timeout: z.timeout,
			act: z.scaleUp(time.Duration(z.slowStart+1)*time.Second, z.after)} // when the first Pods are no longer new
	}
	scaleLong := func(name string, chain ...step) *experiment {
		return &experiment{group: "scale-up, long", name: name, chain: chain, servers: z.pods * 2 / 3, long: z.long, timeout: z.timeout,
			act: z.scaleUp(5*z.hold, 75*time.Second)} // a round of rebalance takes a minute
	}
	silent := func(name string, chain ...step) *experiment {
		return &experiment{group: "silent endpoint", name: name, chain: chain, servers: 10, clients: z.clients / 4, timeout: z.failTimeout, act: z.silence}
	}
	slowPod := func(name string, chain ...step) *experiment {
		return &experiment{group: "slow Pod", name: name, chain: chain, servers: 3, clients: z.clients / 5, timeout: z.timeout, act: z.slowJoins}
	}
	return []*experiment{
		restart("default rules, no preStop", nil, 0, 0),
		restart("drain, no preStop", drain, 0, 0),
		restart("default rules, preStop", nil, z.preStop, 0),
		restart("drain, preStop", drain, z.preStop, z.connections).never(),
		scale("default rules"), scale("warm", slow).never(),
		scaleLong("default rules"), scaleLong("rebalance", rebalance).never(),
		slowPod("default rules"), slowPod("least-loaded", step{"least-loaded", "{interval: 2s}"}).balances(0.45, 0.6),
		silent("default rules"), silent("outlier", step{"outlier", "{}"}).within(3 * time.Second),
	}
}
