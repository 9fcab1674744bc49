package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// figures are what programming one size came to. Times of single changes are in milliseconds, from the event's
// emission to the kernel's acknowledgement.
type figures struct {
	Size               string
	All, AllCPU        float64 // seconds: the whole cluster, from emission to the last acknowledgement
	Messages           int
	Endpoint, Service  spread
	EndpointCPU        float64 // milliseconds a change, user and system
	Resident, Peak     float64 // MiB of this process
	EndpointMessages   int
	WholePlanAgain     float64 // seconds: restart on what is there
	WholePlanAgainMsgs int
}

// spread is the median, the 99th percentile and the largest of some times.
type spread struct{ Median, P99, Max float64 }

func spreadOf(ms []float64) spread {
	slices.Sort(ms)
	at := func(q float64) float64 { return ms[min(len(ms)-1, int(q*float64(len(ms))))] }
	return spread{at(0.5), at(0.99), ms[len(ms)-1]}
}

// timed is a backend that tells when an Apply with something to do has ended.
type timed struct {
	engine.Backend
	ended chan engine.Report
}

func (t *timed) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (engine.Report, error) {
	r, err := t.Backend.Apply(ctx, next, d)
	if err != nil {
		return r, err
	}
	if d == nil || !d.Empty() {
		t.ended <- r
	}
	return r, nil
}

// program measures one size in the present network namespace.
func program(ctx context.Context, s size, changes int) (figures, error) {
	f := figures{Size: s.String()}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	backend, err := nftables.Open(nftables.Options{Now: time.Now, Log: log})
	if err != nil {
		return f, err
	}
	defer backend.Close()
	t := &timed{Backend: backend, ended: make(chan engine.Report, 1)}
	in := make(feed)
	e := engine.New(engine.Options{
		Source: in, Backend: t, Log: log,
		Planner: plan.NewPlanner(plan.Settings{
			Node: nodeName(0), MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("11.0.0.0/8")},
		}, nil),
	})
	ctx, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	defer func() { stop(); <-ran }()

	// one sends changes and waits for the kernel.
	one := func(c []model.Change) (engine.Report, float64, error) {
		start := time.Now()
		in <- c
		select {
		case r := <-t.ended:
			return r, time.Since(start).Seconds() * 1000, nil
		case err := <-ran:
			ran <- err
			return engine.Report{}, 0, fmt.Errorf("the engine ended: %w", err)
		case <-time.After(2 * time.Minute):
			return engine.Report{}, 0, fmt.Errorf("%s: nothing was programmed in two minutes", s)
		}
	}
	all, cpu := cluster(s), cpuSeconds()
	r, ms, err := one(all)
	if err != nil {
		return f, err
	}
	f.All, f.AllCPU, f.Messages = ms/1000, cpuSeconds()-cpu, r.Messages
	all = nil

	var endpoint, replaced []float64
	cpu = cpuSeconds()
	for n := range changes {
		r, ms, err := one([]model.Change{slice(n*7%s.services, s.endpoints, n+1)})
		if err != nil {
			return f, err
		}
		endpoint, f.EndpointMessages = append(endpoint, ms), max(f.EndpointMessages, r.Messages)
	}
	f.EndpointCPU = (cpuSeconds() - cpu) * 1000 / float64(changes)
	for n := range changes {
		i := n * 11 % s.services
		gone := serviceName(i)
		start := time.Now()
		if _, _, err = one([]model.Change{{Kind: model.ServiceKind, Name: gone}, {Kind: model.SliceKind, Name: gone}}); err == nil {
			_, _, err = one([]model.Change{service(i), slice(i, s.endpoints, 0)})
		}
		if err != nil {
			return f, err
		}
		replaced = append(replaced, time.Since(start).Seconds()*1000)
	}
	f.Endpoint, f.Service = spreadOf(endpoint), spreadOf(replaced)
	f.Resident, f.Peak = memory("VmRSS"), memory("VmHWM")
	f.WholePlanAgain, f.WholePlanAgainMsgs, err = restart(ctx, e, log)
	return f, err
}

// restart opens a second backend on what is in the kernel and applies the same plan: what an upgrade does.
func restart(ctx context.Context, e *engine.Engine, log *slog.Logger) (seconds float64, messages int, err error) {
	doErr := e.Do(ctx, func(p *plan.Planner) {
		var b *nftables.Backend
		if b, err = nftables.Open(nftables.Options{Now: time.Now, Log: log}); err != nil {
			return
		}
		defer b.Close()
		start := time.Now()
		var r engine.Report
		r, err = b.Apply(ctx, p.Current(), nil)
		seconds, messages = time.Since(start).Seconds(), r.Messages
	})
	if err == nil {
		err = doErr
	}
	return seconds, messages, err
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// memory is a line of /proc/self/status in MiB.
func memory(line string) float64 {
	text, _ := os.ReadFile("/proc/self/status")
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	return 0
}
