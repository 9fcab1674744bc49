package kube

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Limits of the watches of Pods. A watch costs the API server memory, and each change of a Pod in its namespace a comparison with
// its selector (host/FLEET.md).
const (
	// maxPodWatches bounds the watches of all namespaces. The Pods of further namespaces are not read.
	maxPodWatches = 64
	// maxSelectors is how many selectors of a namespace have watches of their own. More share one of all Pods of the namespace.
	maxSelectors = 4
	// maxSelectorLen bounds a selector, which is part of a URL, in bytes. Longer ones count as that of all Pods.
	maxSelectorLen = 1024
)

// podSelection is what a Service needs of the Pods that it selects.
type podSelection struct {
	selector string // "": none
	keys     source.PodKeys
}

func (a *podSelection) equal(b *podSelection) bool {
	return a.selector == b.selector && a.keys.Covers(&b.keys) && b.keys.Covers(&a.keys)
}

// podDemand is what Services need of their Pods, by namespace.
type podDemand struct {
	services map[string]map[model.Name]podSelection // those with keys
	changed  map[string]bool                        // namespaces whose watches have to be reconciled
	// unread are Services whose Pods may have been read, but not those, or not all of that, which they need now.
	unread map[model.Name]bool
}

// set records what a Service needs, and reports whether that has changed.
func (d *podDemand) set(n model.Name, s podSelection) bool {
	old, had := d.services[n.Namespace][n]
	switch wants := s.keys.Any(); {
	case !had && !wants, had && wants && old.equal(&s):
		return false
	case !wants:
		if delete(d.services[n.Namespace], n); len(d.services[n.Namespace]) == 0 {
			delete(d.services, n.Namespace)
		}
	default:
		if d.services == nil {
			d.services = map[string]map[model.Name]podSelection{}
		}
		if d.services[n.Namespace] == nil {
			d.services[n.Namespace] = map[model.Name]podSelection{}
		}
		d.services[n.Namespace][n] = s
		if had && (old.selector != s.selector || !old.keys.Covers(&s.keys)) {
			if d.unread == nil {
				d.unread = map[model.Name]bool{}
			}
			d.unread[n] = true
		}
	}
	d.mark(n.Namespace)
	return true
}

// appendUnread appends that the Pods of the unread Services are pending: at once, because the watches follow later.
func (d *podDemand) appendUnread(changes []model.Change) []model.Change {
	if len(d.unread) == 0 {
		return changes
	}
	changes = slices.Clip(changes)
	for _, n := range slices.SortedFunc(maps.Keys(d.unread), model.Name.Compare) {
		changes = append(changes, model.Change{Kind: model.PodsReadKind, Name: n, Pods: model.PodsPending})
	}
	return changes
}

func (d *podDemand) mark(namespace string) {
	if d.changed == nil {
		d.changed = map[string]bool{}
	}
	d.changed[namespace] = true
}

// podWatchSpec is a watch of Pods: those of a namespace that a selector matches.
type podWatchSpec struct {
	namespace, selector string // selector "": all Pods of the namespace
	keys                source.PodKeys
}

// covers reports whether a watch has what another one would have.
func (w *podWatchSpec) covers(other *podWatchSpec) bool {
	return w.namespace == other.namespace && w.selector == other.selector && w.keys.Covers(&other.keys)
}

// podWatchSpecs returns the watches that the Services of a namespace need, sorted by selector: one for each distinct selector, or
// one of all Pods if there are more than limit.
func podWatchSpecs(namespace string, services map[model.Name]podSelection, limit int) []podWatchSpec {
	bySelector := map[string]source.PodKeys{}
	var all source.PodKeys
	for _, s := range services {
		if s.selector == "" {
			continue // no Pods are its own
		}
		selector := watchedSelector(s.selector)
		keys := bySelector[selector]
		bySelector[selector] = keys.Union(&s.keys)
		all = all.Union(&s.keys)
	}
	if _, whole := bySelector[""]; whole || len(bySelector) > limit {
		bySelector = map[string]source.PodKeys{"": all}
	}
	var out []podWatchSpec
	for selector, keys := range bySelector {
		out = append(out, podWatchSpec{namespace, selector, keys})
	}
	slices.SortFunc(out, func(a, b podWatchSpec) int { return strings.Compare(a.selector, b.selector) })
	return out
}

// watchedSelector returns the selector of a watch for a Service with this selector.
func watchedSelector(selector string) string {
	if len(selector) > maxSelectorLen {
		return ""
	}
	return selector
}

// specOf returns the watch, among those of a namespace, that has the Pods of a Service; nil if none has.
func specOf(specs []podWatchSpec, s *podSelection) *podWatchSpec {
	i := slices.IndexFunc(specs, func(w podWatchSpec) bool { return w.selector == "" || w.selector == watchedSelector(s.selector) })
	if i < 0 {
		return nil
	}
	return &specs[i]
}

// podChanges are the namespaces to reconcile.
type podChanges struct {
	namespaces []string // sorted
	services   map[string]map[model.Name]podSelection
	unread     map[model.Name]bool
	demanded   int // Services that need Pods, in all namespaces
}

// takePodChanges returns the namespaces to reconcile, once.
func (s *Source) takePodChanges() podChanges {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.demand.pods
	out := podChanges{namespaces: slices.Sorted(maps.Keys(d.changed)), services: map[string]map[model.Name]podSelection{}, unread: d.unread}
	for _, ns := range out.namespaces {
		out.services[ns] = maps.Clone(d.services[ns])
	}
	d.changed, d.unread = nil, nil
	for _, all := range d.services {
		out.demanded += len(all)
	}
	return out
}
