package kube

import (
	"maps"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// mergedPods merges the Pods of all watches: the selectors of several Services can match the same Pod, and each watch reads only
// the keys of its own Services.
type mergedPods struct {
	publish func([]model.Change)

	mu   sync.Mutex // held while publishing, so that the last value of a Pod is published last
	pods map[model.Name]*mergedPod
}

type mergedPod struct {
	published *model.Pod
	parts     []podPart // at least one
}

// podPart is what a watch has read of a Pod.
type podPart struct {
	watch *podWatch
	pod   *model.Pod
}

// update records changes of a watch and publishes what follows.
func (m *mergedPods) update(w *podWatch, changes []model.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []model.Change
	for i := range changes {
		name, v := changes[i].Name, changes[i].Pod
		if c, changed := m.set(w, name, v); changed {
			out = append(out, c)
		}
	}
	m.publish(out)
}

// set replaces what a watch has read of a Pod; nil: it no longer has it.
func (m *mergedPods) set(w *podWatch, name model.Name, v *model.Pod) (c model.Change, changed bool) {
	p := m.pods[name]
	if p == nil {
		if v == nil {
			return c, false
		}
		p = &mergedPod{}
		m.pods[name] = p
	}
	i := slices.IndexFunc(p.parts, func(part podPart) bool { return part.watch == w })
	switch {
	case v != nil && i >= 0:
		p.parts[i].pod = v
	case v != nil:
		p.parts = append(p.parts, podPart{w, v})
	case i >= 0:
		p.parts = slices.Delete(p.parts, i, i+1)
	}
	if len(p.parts) == 0 {
		delete(m.pods, name)
		return podChange(name, nil), true
	}
	merged := p.merge()
	if p.published != nil && equal(p.published, merged) {
		return c, false
	}
	p.published = merged
	return podChange(name, merged), true
}

// merge returns what all watches have read of a Pod. They can be at different versions of it for a moment.
func (p *mergedPod) merge() *model.Pod {
	first := p.parts[0].pod
	if len(p.parts) == 1 {
		return first
	}
	out := *first
	out.Labels, out.Annotations = maps.Clone(first.Labels), maps.Clone(first.Annotations)
	for _, part := range p.parts[1:] {
		out.Labels, out.Annotations = withAll(out.Labels, part.pod.Labels), withAll(out.Annotations, part.pod.Annotations)
		out.MilliCPU, out.ReadySince = max(out.MilliCPU, part.pod.MilliCPU), max(out.ReadySince, part.pod.ReadySince)
	}
	return &out
}

func withAll(to, from map[string]string) map[string]string {
	if to == nil {
		return maps.Clone(from)
	}
	maps.Copy(to, from)
	return to
}

func (m *mergedPods) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods)
}
