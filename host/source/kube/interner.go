package kube

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// generationSize is how many entries are kept before those that were not used since the last rotation are dropped.
const generationSize = 1 << 15

// interner keeps one copy of each repeated string (node, zone, namespace and port names) and of common hints. Entries
// unused for two generations are dropped, so it grows with the cluster and not with its history. It is not safe for
// concurrent use.
type interner struct {
	current, previous           map[string]string
	currentHints, previousHints map[hintKey]*model.Hints
}

// hintKey identifies hints for at most one zone and one node, the usual case.
type hintKey struct{ zone, node string }

func newInterner() *interner {
	return &interner{current: map[string]string{}, currentHints: map[hintKey]*model.Hints{}}
}

// intern returns the shared copy of t.
func (s *interner) intern(t string) string {
	if t == "" {
		return ""
	}
	if known, ok := s.current[t]; ok {
		return known
	}
	if known, ok := s.previous[t]; ok {
		t = known
	}
	if len(s.current) >= generationSize {
		s.current, s.previous = map[string]string{}, s.current
	}
	s.current[t] = t
	return t
}

// internBytes returns the shared copy of a string, and copies it only if there is none.
func (s *interner) internBytes(t []byte) string {
	if known, ok := s.current[string(t)]; ok {
		return known
	}
	return s.intern(string(t))
}

// internHints returns a shared copy of h if h is for at most one zone and one node, else h with its strings interned.
func (s *interner) internHints(h *model.Hints) *model.Hints {
	if h == nil {
		return nil
	}
	for _, list := range [][]string{h.Zones, h.Nodes} {
		for i := range list {
			list[i] = s.intern(list[i])
		}
	}
	if len(h.Zones) > 1 || len(h.Nodes) > 1 || slices.Contains(h.Zones, "") || slices.Contains(h.Nodes, "") {
		return h
	}
	var k hintKey
	if len(h.Zones) == 1 {
		k.zone = h.Zones[0]
	}
	if len(h.Nodes) == 1 {
		k.node = h.Nodes[0]
	}
	if known, ok := s.currentHints[k]; ok {
		return known
	}
	if known, ok := s.previousHints[k]; ok {
		h = known
	}
	if len(s.currentHints) >= generationSize {
		s.currentHints, s.previousHints = map[hintKey]*model.Hints{}, s.currentHints
	}
	s.currentHints[k] = h
	return h
}

func (s *interner) internService(v *model.Service) {
	if v == nil {
		return
	}
	v.Name.Namespace = s.intern(v.Name.Namespace)
	v.Policy = s.intern(v.Policy)
	for i := range v.Ports {
		v.Ports[i].Name = s.intern(v.Ports[i].Name)
	}
	if v.Labels != nil {
		labels := make(map[string]string, len(v.Labels))
		for key, value := range v.Labels {
			labels[s.intern(key)] = s.intern(value)
		}
		v.Labels = labels
	}
}

func (s *interner) internSlice(v *model.EndpointSlice) {
	if v == nil {
		return
	}
	v.Name.Namespace = s.intern(v.Name.Namespace)
	v.Service = model.Name{Namespace: v.Name.Namespace, Name: s.intern(v.Service.Name)}
	for i := range v.Ports {
		v.Ports[i].Name = s.intern(v.Ports[i].Name)
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		e.Node, e.Zone = s.intern(e.Node), s.intern(e.Zone)
		e.Hints = s.internHints(e.Hints)
	}
}

func (s *interner) internPod(v *model.Pod) {
	v.Name.Namespace = s.intern(v.Name.Namespace)
	for _, values := range []map[string]string{v.Labels, v.Annotations} {
		for key, value := range values {
			values[key] = s.intern(value)
		}
	}
}
