package kube

import "github.com/sluice-proxy/sluice/host/model"

// wishes know which Services have policies that want to know the cluster's Nodes. The other Nodes are read for as long as
// there is one.
type wishes struct {
	of   func(*model.Service) bool
	have map[model.Name]bool
}

// SetNeedsNodes says which Services have policies that want to know the cluster's Nodes; nil: none. It may be called at any
// time, by any goroutine.
func (s *Source) SetNeedsNodes(of func(*model.Service) bool) {
	s.mu.Lock()
	w := &s.wishes
	w.of, w.have = of, map[model.Name]bool{}
	s.services.mu.Lock()
	for n, v := range s.services.held {
		w.see(n, v)
	}
	s.services.mu.Unlock()
	s.mu.Unlock()
	s.wake()
}

// see takes in what a Service is now; nil: gone.
func (w *wishes) see(n model.Name, v *model.Service) {
	if v != nil && w.of != nil && w.of(v) {
		w.have[n] = true
	} else {
		delete(w.have, n)
	}
}

// changed takes changes in and tells whether it is now another way around.
func (w *wishes) changed(changes []model.Change) bool {
	before := len(w.have) > 0
	for i := range changes {
		if changes[i].Kind == model.ServiceKind {
			w.see(changes[i].Name, changes[i].Service)
		}
	}
	return before != (len(w.have) > 0)
}

// wantsNodes tells whether the other Nodes are wanted.
func (s *Source) wantsNodes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wishes.have) > 0
}
