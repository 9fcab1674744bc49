package planner

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// podIndex finds the Services whose policy sees values of a Pod, so that a change of a Pod plans only these again. It has no entries for
// other Services.
type podIndex map[model.Name][]model.Name

// replace replaces the Pods of a Service. Both lists are sorted.
func (x podIndex) replace(service model.Name, old, pods []string) {
	if slices.Equal(old, pods) {
		return
	}
	for _, pod := range old {
		if _, kept := slices.BinarySearch(pods, pod); kept {
			continue
		}
		name := model.Name{Namespace: service.Namespace, Name: pod}
		rest := slices.DeleteFunc(x[name], func(s model.Name) bool { return s == service })
		if x[name] = rest; len(rest) == 0 {
			delete(x, name)
		}
	}
	for _, pod := range pods {
		if _, had := slices.BinarySearch(old, pod); !had {
			name := model.Name{Namespace: service.Namespace, Name: pod}
			x[name] = append(x[name], service)
		}
	}
}

// indexedPods are the Pods of a Service in the index.
type indexedPods struct {
	names  []string // sorted
	slices []*model.EndpointSlice
}
