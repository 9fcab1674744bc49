package kube

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// serviceAnnotations keeps the annotations of Services that plugins can declare, so that a plugin that declares another key gets
// its values without a new list. The values of Services have only the declared ones: any other annotation is no change.
type serviceAnnotations struct {
	needs atomic.Pointer[func(*model.Service) Needs] // nil: nothing

	mu     sync.Mutex
	packed map[model.Name]model.Annotations
}

// take keeps the annotations of a Service and removes them from its value.
func (a *serviceAnnotations) take(v *model.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.Annotations == "" {
		delete(a.packed, v.Name)
		return
	}
	if a.packed == nil {
		a.packed = map[model.Name]model.Annotations{}
	}
	a.packed[v.Name], v.Annotations = v.Annotations, ""
}

func (a *serviceAnnotations) forget(n model.Name) {
	a.mu.Lock()
	delete(a.packed, n)
	a.mu.Unlock()
}

// narrow returns a Service with the annotations that its policy declares. It does not modify v, which may be in use.
func (a *serviceAnnotations) narrow(v *model.Service) *model.Service {
	var declared model.Annotations
	if needs := a.needs.Load(); needs != nil {
		a.mu.Lock()
		packed := a.packed[v.Name]
		a.mu.Unlock()
		if packed != "" {
			declared = packed.Only((*needs)(v).Annotations)
		}
	}
	if declared == v.Annotations {
		return v
	}
	w := *v
	w.Annotations = declared
	return &w
}
