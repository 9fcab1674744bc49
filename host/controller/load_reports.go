package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/controller/loads"
	"github.com/sluice-proxy/sluice/host/controller/orca"
	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// LoadReports is the annotation of a Service whose endpoints are asked for their load: the port at which they serve ORCA.
const LoadReports = "sluice.dev/load-reports"

const (
	watchStarts  = 20          // watches of EndpointSlices that are started in a second
	invalidLines = 10          // lines of the log a minute about invalid annotations
	countsEach   = time.Minute // between lines of the log with counts
)

// loadReports asks endpoints for their load while this controller leads, and writes EndpointLoads.
type loadReports struct {
	clients   *clients
	services  cache.SharedIndexInformer // of the controller: it outlives a term as the leader
	handler   cache.ResourceEventHandlerRegistration
	written   cache.SharedIndexInformer // EndpointLoads that controllers have written
	rules     eligibility.EndpointRules
	collector *loads.Collector
	log       *slog.Logger
	dirty     atomic.Bool
	watches   map[model.Name]*sliceWatch
	paces     map[model.Name]*pace
	invalid   map[model.Name]bool // annotations
	lines     int                 // about them in this minute
	counts    loadCounts
}

// loadCounts are shown in the log.
type loadCounts struct {
	loads.Counts
	OmittedServices, InvalidAnnotations int // now
	Writes, Deletions, FailedWrites     int64
}

// sliceWatch is a Service whose EndpointSlices are watched.
type sliceWatch struct {
	port   uint16
	since  time.Time
	slices cache.SharedIndexInformer
	cancel context.CancelFunc // nil: not started
}

// Indexes of Services.
const (
	byLoadReports = "load-reports" // one key for all that have the annotation
	byClusterIP   = "cluster-ip"
)

func serviceIndexers() cache.Indexers {
	return cache.Indexers{
		byLoadReports: func(o any) ([]string, error) {
			s, ok := o.(*corev1.Service)
			if !ok {
				return nil, nil
			}
			if _, has := s.Annotations[LoadReports]; !has {
				return nil, nil
			}
			return []string{""}, nil
		},
		byClusterIP: func(o any) (out []string, _ error) {
			if s, ok := o.(*corev1.Service); ok {
				for _, ip := range append(slices.Clip(s.Spec.ClusterIPs), s.Spec.ClusterIP) {
					if addr, err := ipaddr.Parse(ip); err == nil {
						out = append(out, addr.String())
					}
				}
			}
			return out, nil
		},
	}
}

func newLoadReports(c *clients, services cache.SharedIndexInformer, cfg *config.Config, log *slog.Logger) *loadReports {
	r := &loadReports{clients: c, services: services, written: writtenLoads(c), log: log, watches: map[model.Name]*sliceWatch{},
		paces: map[model.Name]*pace{}, invalid: map[model.Name]bool{}}
	r.rules = eligibility.EndpointRules{ClusterIP: r.isClusterIP, Allowed: append(eligibility.ReservedInUse(cfg.ClusterRanges()), cfg.EndpointCIDRs...)}
	r.collector = loads.New(loads.Options{Check: r.check, Ask: orca.Stream})
	r.handler, _ = services.AddEventHandler(handler(r.changed))
	return r
}

func (r *loadReports) changed() { r.dirty.Store(true) }

// run asks and writes until ctx ends.
func (r *loadReports) run(ctx context.Context) {
	defer func() { _ = r.services.RemoveEventHandler(r.handler) }()
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { r.written.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), r.services.HasSynced, r.written.HasSynced) {
		return
	}
	background.Go(func() { r.collector.Run(ctx) })
	tick, minute := time.NewTicker(sweepEach), time.NewTicker(countsEach)
	defer tick.Stop()
	defer minute.Stop()
	r.changed()
	var said loadCounts
	for {
		if r.dirty.Swap(false) {
			r.update(ctx, &background)
		}
		r.write(ctx)
		select {
		case <-ctx.Done():
			return
		case <-minute.C:
			r.lines = 0
			if r.counts.Counts = r.collector.Counts(); r.counts != said {
				said = r.counts
				r.log.Info("load that endpoints report", "counts", said)
			}
		case <-tick.C:
		}
	}
}

// update watches the EndpointSlices of the Services that have the annotation, and has their endpoints asked.
func (r *loadReports) update(ctx context.Context, background *sync.WaitGroup) {
	wanted := r.wanted()
	for name, w := range r.watches {
		if wanted[name] == 0 {
			if w.cancel != nil {
				w.cancel()
			}
			delete(r.watches, name)
		}
	}
	var waiting []*sliceWatch
	for name, port := range wanted {
		w := r.watches[name]
		if w == nil {
			w = &sliceWatch{since: time.Now(), slices: r.slicesOf(name)}
			r.watches[name] = w
		}
		if w.port = port; w.cancel == nil {
			waiting = append(waiting, w)
		}
	}
	slices.SortFunc(waiting, func(a, b *sliceWatch) int { return a.since.Compare(b.since) })
	for i, w := range waiting {
		if i == watchStarts {
			r.changed()
			break
		}
		var watching context.Context
		watching, w.cancel = context.WithCancel(ctx)
		background.Go(func() { w.slices.RunWithContext(watching) })
	}
	r.ask()
}

// wanted returns the ports of the Services that are to be asked.
func (r *loadReports) wanted() map[model.Name]uint16 {
	ports := map[model.Name]uint16{}
	var names []model.Name
	invalid := map[model.Name]bool{}
	all, _ := r.services.GetIndexer().ByIndex(byLoadReports, "")
	for _, o := range all {
		s := o.(*corev1.Service)
		name := model.Name{Namespace: s.Namespace, Name: s.Name}
		text := s.Annotations[LoadReports]
		if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 && strconv.FormatUint(port, 10) == text {
			ports[name] = uint16(port)
			names = append(names, name)
			continue
		}
		if invalid[name] = true; !r.invalid[name] && r.lines < invalidLines {
			r.lines++
			r.log.Warn("an annotation is not the number of a port: load is not asked for", "service", name.String(), "annotation", LoadReports, "value", fmt.Sprintf("%.40q", text))
		}
	}
	r.invalid, r.counts.InvalidAnnotations = invalid, len(invalid)
	chosen := map[model.Name]uint16{}
	for _, name := range loads.Choose(names) {
		chosen[name] = ports[name]
	}
	r.counts.OmittedServices = len(names) - len(chosen)
	return chosen
}

// slicesOf returns an informer for the EndpointSlices of a Service.
func (r *loadReports) slicesOf(name model.Name) cache.SharedIndexInformer {
	return informer(cache.NewFilteredListWatchFromClient(r.clients.discovery, "endpointslices", name.Namespace, func(o *metav1.ListOptions) {
		o.LabelSelector = discoveryv1.LabelServiceName + "=" + name.Name
	}), &discoveryv1.EndpointSlice{}, r.changed)
}

// ask has the endpoints asked of all Services whose EndpointSlices are known.
func (r *loadReports) ask() {
	var all []loads.Service
	for name, w := range r.watches {
		s := r.service(name)
		if s == nil {
			continue
		}
		if w.cancel == nil || !w.slices.HasSynced() {
			r.changed() // no event says so if there are none
			continue
		}
		of := loads.Service{Name: name, UID: string(s.UID), Port: w.port}
		for _, o := range w.slices.GetStore().List() {
			of.Endpoints = appendEndpoints(of.Endpoints, o.(*discoveryv1.EndpointSlice))
		}
		if o := r.load(name); o != nil {
			of.Written = o.Endpoints
		}
		all = append(all, of)
	}
	r.collector.Set(all)
}

// service returns a Service, nil if it is gone.
func (r *loadReports) service(name model.Name) *corev1.Service {
	o, _, _ := r.services.GetStore().GetByKey(name.String())
	s, _ := o.(*corev1.Service)
	return s
}

// appendEndpoints appends the endpoints of a slice that serve.
func appendEndpoints(out []loads.Endpoint, s *discoveryv1.EndpointSlice) []loads.Endpoint {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 || !isTrue(e.Conditions.Ready, true) && !isTrue(e.Conditions.Serving, false) {
			continue
		}
		addr, err := ipaddr.Parse(e.Addresses[0])
		if err != nil {
			continue // a name: no proxy connects to it
		}
		of := loads.Endpoint{Addr: addr}
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" && cmp.Or(ref.Namespace, s.Namespace) == s.Namespace {
			of.Pod, of.UID = ref.Name, string(ref.UID)
		}
		out = append(out, of)
	}
	return out
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}
