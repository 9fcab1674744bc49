// Package controller implements `sluice controller`: it makes the status of ServicePlugins, ServicePolicies and
// ClusterServicePolicies of what nodes report, and asks endpoints for their load. Nodes do not need it: without it, status stands
// still, and load ages.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
)

// Name is the controllerName of ancestors, and the field manager.
const Name = "sluice.dev/controller"

const (
	// sweepEach is how often changes become status.
	sweepEach = time.Second
	// writeEach is the least time between two writes of the status of an object.
	writeEach = 3 * time.Second
	// modulesWait is how long a new leader waits for the modules that have not been read, before it writes what it knows.
	modulesWait = 10 * time.Second
	writers     = 8 // writes at the same time
)

// Options of Run.
type Options struct {
	Connection kube.Connection
	// Config is the configuration of the nodes: its plugins may be used by policies.
	Config     *config.Config
	ReadModule ReadModule
	Namespace  string // of the Lease
	Identity   string // of this process
	// HealthAddress is where /livez and /readyz are served; "": nowhere.
	HealthAddress string
	Log           *slog.Logger
}

// Run runs the controller until ctx ends. Each candidate keeps the caches, so that the next leader has them already.
func Run(ctx context.Context, o Options) error {
	c := &controller{Options: o, modules: newModules(o.ReadModule)}
	var err error
	if c.clients, err = newClients(o.Connection); err != nil {
		return err
	}
	c.caches = newCaches(c.clients, func() { c.dirty.Store(true) })
	c.election = &election{leases: c.clients.leases, namespace: o.Namespace, identity: o.Identity, log: o.Log}
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { c.caches.run(ctx) })
	if o.HealthAddress != "" {
		background.Go(func() {
			httpserve.ListenAndServeRetry(ctx, httpserve.Options{Name: "health", Address: o.HealthAddress, Handler: health(c.notReady), Log: o.Log, After: time.After})
		})
	}
	c.election.run(ctx, c.lead)
	return nil
}

// controller is a candidate and, in lead, the leader.
type controller struct {
	Options
	clients  *clients
	modules  *modules
	caches   *caches
	election *election
	objects  *config.Objects
	dirty    atomic.Bool
	written  map[model.ObjectName]time.Time
}

// lead writes status until ctx ends.
func (c *controller) lead(ctx context.Context) {
	c.Log.Info("leading: this controller writes status", "identity", c.Identity)
	c.objects, c.written = &config.Objects{}, map[model.ObjectName]time.Time{}
	reports := newLoadReports(c.clients, c.caches.services, c.Config, c.Log)
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { reports.run(ctx) })
	background.Go(func() { c.modules.run(ctx, func() { c.dirty.Store(true) }) })
	if !c.caches.wait(ctx) {
		return
	}
	tick := time.NewTicker(sweepEach)
	defer tick.Stop()
	patience := time.Now().Add(modulesWait)
	for {
		v := newView(c.caches, c.objects, c.Config, c.modules)
		if !v.modulesPending || time.Now().After(patience) {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	c.dirty.Store(true)
	for {
		if c.dirty.Swap(false) && !c.sweep(ctx) {
			c.dirty.Store(true)
		}
		select {
		case <-ctx.Done():
			c.Log.Info("no longer leading", "identity", c.Identity)
			return
		case <-tick.C:
		}
	}
}

// sweep writes the status of all objects that have another one than they should, and reports whether all of it is written.
func (c *controller) sweep(ctx context.Context) (complete bool) {
	v := newView(c.caches, c.objects, c.Config, c.modules)
	var changed []*write
	for _, w := range v.statuses() {
		if w.differs {
			changed = append(changed, w)
		}
	}
	var incomplete atomic.Bool
	slots := make(chan struct{}, writers)
	var wg sync.WaitGroup
	now := time.Now()
	for _, w := range changed {
		if now.Sub(c.written[w.name]) < writeEach {
			incomplete.Store(true)
			continue
		}
		c.written[w.name] = now
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := c.clients.writeStatus(ctx, w); err != nil && ctx.Err() == nil {
				incomplete.Store(true)
				c.Log.Warn("writing a status failed; it is retried", "object", fmt.Sprint(w.name.Kind, " ", w.name.Name), "err", err)
			}
		})
	}
	wg.Wait()
	for name, at := range c.written {
		if now.Sub(at) > writeEach {
			delete(c.written, name)
		}
	}
	return !incomplete.Load()
}
