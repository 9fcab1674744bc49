package kube

import "github.com/sluice-proxy/sluice/host/model"

// generation is how many texts are remembered before those that nobody has asked for go.
const generation = 1 << 15

// strings keeps one copy of each text that repeats: names of nodes, zones, namespaces and ports. It forgets what was
// not seen for a while, so that it grows with what there is and not with what there was. For one goroutine.
type strings struct {
	now, before   map[string]string
	lists, listsB map[string][]string // lists of one text
}

func newStrings() *strings {
	return &strings{now: map[string]string{}, lists: map[string][]string{}}
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

// list gives a list equal to l; lists of one text, which hints mostly are, are the same one each time.
func (s *strings) list(l []string) []string {
	if len(l) != 1 {
		for i := range l {
			l[i] = s.one(l[i])
		}
		return l
	}
	if known, ok := s.lists[l[0]]; ok {
		return known
	}
	known, ok := s.listsB[l[0]]
	if !ok {
		known = []string{s.one(l[0])}
	}
	if len(s.lists) >= generation {
		s.lists, s.listsB = map[string][]string{}, s.lists
	}
	s.lists[known[0]] = known
	return known
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
		e.ForZones, e.ForNodes = s.list(e.ForZones), s.list(e.ForNodes)
	}
}
