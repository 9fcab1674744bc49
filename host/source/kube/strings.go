package kube

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
)

// generation is how many texts are remembered before those that nobody has asked for go.
const generation = 1 << 15

// strings keeps one copy of each text that repeats: names of nodes, zones, namespaces and ports. It forgets what was
// not seen for a while, so that it grows with what there is and not with what there was. For one goroutine.
type strings struct {
	now, before          map[string]string
	hinted, hintedBefore map[hintKey]*model.Hints
}

// hintKey are hints for one zone, one node or both, which is what they mostly are.
type hintKey struct{ zone, node string }

func newStrings() *strings {
	return &strings{now: map[string]string{}, hinted: map[hintKey]*model.Hints{}}
}

// one gives a text equal to t, the same one each time.
func (s *strings) one(t string) string {
	if t == "" {
		return ""
	}
	if known, ok := s.now[t]; ok {
		return known
	}
	if known, ok := s.before[t]; ok {
		t = known
	}
	if len(s.now) >= generation {
		s.now, s.before = map[string]string{}, s.now
	}
	s.now[t] = t
	return t
}

// hints gives hints equal to h; those for one zone or node are the same ones each time.
func (s *strings) hints(h *model.Hints) *model.Hints {
	if h == nil {
		return nil
	}
	for _, list := range [][]string{h.Zones, h.Nodes} {
		for i := range list {
			list[i] = s.one(list[i])
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
	if known, ok := s.hinted[k]; ok {
		return known
	}
	if known, ok := s.hintedBefore[k]; ok {
		h = known
	}
	if len(s.hinted) >= generation {
		s.hinted, s.hintedBefore = map[hintKey]*model.Hints{}, s.hinted
	}
	s.hinted[k] = h
	return h
}

func (s *strings) service(v *model.Service) {
	if v == nil {
		return
	}
	v.Name.Namespace = s.one(v.Name.Namespace)
	v.Policy = s.one(v.Policy)
	for i := range v.Ports {
		v.Ports[i].Name = s.one(v.Ports[i].Name)
	}
	if v.Labels != nil {
		labels := make(map[string]string, len(v.Labels))
		for key, value := range v.Labels {
			labels[s.one(key)] = s.one(value)
		}
		v.Labels = labels
	}
}

func (s *strings) slice(v *model.EndpointSlice) {
	if v == nil {
		return
	}
	v.Name.Namespace = s.one(v.Name.Namespace)
	v.Service = model.Name{Namespace: v.Name.Namespace, Name: s.one(v.Service.Name)}
	for i := range v.Ports {
		v.Ports[i].Name = s.one(v.Ports[i].Name)
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		e.Node, e.Zone = s.one(e.Node), s.one(e.Zone)
		e.Hints = s.hints(e.Hints)
	}
}
