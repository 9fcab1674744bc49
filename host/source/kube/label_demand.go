package kube

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// maxLabels bounds the different labels that are read of Nodes, and of namespaces, and the fields of load. Further ones are
// absent.
const maxLabels = 32

// labelDemand is which labels of Nodes, labels of namespaces, or fields of load the policies of Services see.
type labelDemand struct {
	services map[model.Name][]string // sorted
	counts   map[string]int          // Services by label
	wanted   []string                // sorted: those that are read
	read     []string                // sorted: those that have been read
	warned   bool                    // that there are too many
}

// set records which labels the policy of a Service sees, and reports whether other labels are wanted than before.
func (d *labelDemand) set(n model.Name, labels []string) (changed bool) {
	old := d.services[n]
	if slices.Equal(old, labels) {
		return false
	}
	if d.services == nil {
		d.services, d.counts = map[model.Name][]string{}, map[string]int{}
	}
	if d.services[n] = labels; len(labels) == 0 {
		delete(d.services, n)
	}
	for _, l := range labels {
		d.counts[l]++
	}
	before := d.wanted
	for _, l := range old {
		if d.counts[l]--; d.counts[l] == 0 {
			delete(d.counts, l)
			d.wanted = slices.DeleteFunc(slices.Clone(d.wanted), func(w string) bool { return w == l })
		}
	}
	// Labels that are read stay: whoever declares many others displaces none.
	if len(d.wanted) < min(maxLabels, len(d.counts)) {
		for _, l := range slices.Sorted(maps.Keys(d.counts)) {
			if i, found := slices.BinarySearch(d.wanted, l); !found && len(d.wanted) < maxLabels {
				d.wanted = slices.Insert(slices.Clone(d.wanted), i, l)
			}
		}
	}
	return !slices.Equal(before, d.wanted)
}

// labels returns the demand for labels that a kind of change tells of.
func (d *demand) labels(kind model.Kind) *labelDemand {
	switch kind {
	case model.NodeLabelsKind:
		return &d.nodeLabels
	case model.LoadReadKind:
		return &d.load
	}
	return &d.namespaceLabels
}

// wantedLabels returns the labels to read. They must not be modified.
func (s *Source) wantedLabels(kind model.Kind) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.demand.labels(kind)
	if more := len(d.counts) > len(d.wanted); more != d.warned {
		if d.warned = more; more {
			s.opt.Log.Warn("policies see too many different labels; further ones are absent", "of", labelObjects[kind], "labels", len(d.counts), "limit", maxLabels)
		}
	}
	return d.wanted
}

// labelsRead publishes which labels have been read.
func (s *Source) labelsRead(kind model.Kind, labels []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.demand.labels(kind)
	if slices.Equal(d.read, labels) {
		return // as of most lists
	}
	d.read = labels
	s.send([]model.Change{{Kind: kind, Read: labels}})
}

var labelObjects = map[model.Kind]string{model.NodeLabelsKind: "Nodes", model.NamespaceLabelsKind: "namespaces", model.LoadReadKind: "load"}

// LabelStats counts the different labels of a kind of objects that policies see.
type LabelStats struct {
	Of                     string // Nodes, namespaces or load
	Read, Pending, Refused int    // refused: there are too many
}

// LabelStats returns which labels are read. It is safe for concurrent use.
func (s *Source) LabelStats() (out []LabelStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range [...]model.Kind{model.NodeLabelsKind, model.NamespaceLabelsKind, model.LoadReadKind} {
		d := s.demand.labels(kind)
		stats := LabelStats{Of: labelObjects[kind], Refused: len(d.counts) - len(d.wanted)}
		for _, l := range d.wanted {
			if _, read := slices.BinarySearch(d.read, l); read {
				stats.Read++
			} else {
				stats.Pending++
			}
		}
		out = append(out, stats)
	}
	return out
}

// labelsPending reports whether labels that policies see have not been read.
func (s *Source) labelsPending() bool {
	return slices.ContainsFunc(s.LabelStats(), func(l LabelStats) bool { return l.Pending > 0 })
}

// only returns the labels with these names, nil for none.
func only(labels map[string]string, names []string, s *interner) (out map[string]string) {
	for _, name := range names {
		if value, ok := labels[name]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = s.intern(value)
		}
	}
	return out
}
