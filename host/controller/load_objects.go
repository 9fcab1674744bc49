package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller/loads"
	"github.com/sluice-proxy/sluice/host/core/model"
)

const (
	loadsResource = "endpointloads"
	// managedBy is the label of objects that controllers write, with Name's last part as its value: others are left alone.
	managedBy, manager = "app.kubernetes.io/managed-by", "sluice-controller"
)

// pace is when an EndpointLoad has been written.
type pace struct {
	at, next time.Time // next: when it is looked at again
	err      string    // of the last write
}

// writtenLoads returns an informer for the EndpointLoads that controllers have written.
func writtenLoads(c *clients) cache.SharedIndexInformer {
	i := informer(cache.NewFilteredListWatchFromClient(c.sluice, loadsResource, "", func(o *metav1.ListOptions) {
		o.LabelSelector = managedBy + "=" + manager
	}), &v1alpha1.EndpointLoad{}, func() {})
	_ = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) { // an older version of the kinds is installed
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	return i
}

// load returns the EndpointLoad of a Service as it is written, nil if none is.
func (r *loadReports) load(name model.Name) *v1alpha1.EndpointLoad {
	o, _, _ := r.written.GetStore().GetByKey(name.String())
	load, _ := o.(*v1alpha1.EndpointLoad)
	return load
}

// write writes EndpointLoads that differ, each at its pace, and deletes those of Services that no longer have the annotation.
func (r *loadReports) write(ctx context.Context) {
	now := time.Now()
	jobs := map[model.Name]func(context.Context) error{}
	for _, name := range r.collector.Names() {
		p := r.paceOf(name)
		if now.Before(p.next) {
			continue
		}
		l := r.collector.Load(name)
		if l == nil {
			continue
		}
		if p.next = now.Add(l.Interval() / 10); l.Differs(r.load(name), now.Sub(p.at)) {
			p.at, p.next = now, now.Add(l.Interval())
			jobs[name] = func(ctx context.Context) error { return r.apply(ctx, name, l) }
			r.counts.Writes++
		}
	}
	for _, o := range r.written.GetStore().List() {
		load := o.(*v1alpha1.EndpointLoad)
		name := model.Name{Namespace: load.Namespace, Name: load.Name}
		if p := r.paceOf(name); r.watches[name] == nil && !now.Before(p.next) {
			p.at, p.next = now, now.Add((&loads.Load{}).Interval())
			jobs[name] = func(ctx context.Context) error { return r.remove(ctx, load) }
			r.counts.Deletions++
		}
	}
	r.do(ctx, jobs)
	maps.DeleteFunc(r.paces, func(name model.Name, p *pace) bool { return r.watches[name] == nil && !now.Before(p.next) })
}

func (r *loadReports) paceOf(name model.Name) *pace {
	if r.paces[name] == nil {
		r.paces[name] = &pace{}
	}
	return r.paces[name]
}

// do does several writes at the same time, and logs errors that are new.
func (r *loadReports) do(ctx context.Context, jobs map[model.Name]func(context.Context) error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, writers)
	for name, job := range jobs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			defer cancel()
			err := job(ctx)
			mu.Lock()
			defer mu.Unlock()
			p, text := r.paces[name], ""
			if err != nil {
				r.counts.FailedWrites++
				text = err.Error()
			}
			if text != "" && text != p.err {
				r.log.Warn("an EndpointLoad; it is retried", "object", name.String(), "err", err)
			}
			p.err = text
		})
	}
	wg.Wait()
}

// apply writes the EndpointLoad of a Service, unless somebody else manages it.
func (r *loadReports) apply(ctx context.Context, name model.Name, l *loads.Load) error {
	body, err := json.Marshal(&v1alpha1.EndpointLoad{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.EndpointLoadKind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{managedBy: manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name.Name, UID: types.UID(l.UID)}},
		},
		Endpoints: l.Endpoints, Reporting: l.Reporting, Silent: l.Silent, Message: l.Message,
	})
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	err = r.clients.sluice.Patch(types.ApplyPatchType).Namespace(name.Namespace).Resource(loadsResource).Name(name.Name).
		Param("fieldManager", Name).Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// remove deletes an EndpointLoad.
func (r *loadReports) remove(ctx context.Context, o *v1alpha1.EndpointLoad) error {
	err := r.clients.sluice.Delete().Namespace(o.Namespace).Resource(loadsResource).Name(o.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}
