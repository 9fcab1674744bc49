package kube

import "github.com/sluice-proxy/sluice/host/model"

// nodeDemand know which Services have policies that want to know the cluster's Nodes. The other Nodes are read for as long as
// there is one.
type nodeDemand struct {
	needsNodes func(*model.Service) bool
	services   map[model.Name]bool
}

// SetNeedsNodes says which Services have policies that want to know the cluster's Nodes; nil: none. It may be called at any
// time, by any goroutine.
func (s *Source) SetNeedsNodes(of func(*model.Service) bool) {
	s.mu.Lock()
	w := &s.demand
	w.needsNodes, w.services = of, map[model.Name]bool{}
	s.services.mu.Lock()
	for n, v := range s.services.values {
		w.observe(n, v)
	}
	s.services.mu.Unlock()
	s.mu.Unlock()
	s.wake()
}

// observe takes in what a Service is now; nil: gone.
func (w *nodeDemand) observe(n model.Name, v *model.Service) {
	if v != nil && w.needsNodes != nil && w.needsNodes(v) {
		w.services[n] = true
	} else {
		delete(w.services, n)
	}
}

// update takes changes in and tells whether it is now another way around.
func (w *nodeDemand) update(changes []model.Change) bool {
	before := len(w.services) > 0
	for i := range changes {
		if changes[i].Kind == model.ServiceKind {
			w.observe(changes[i].Name, changes[i].Service)
		}
	}
	return before != (len(w.services) > 0)
}

// nodesWanted tells whether the other Nodes are wanted.
func (s *Source) nodesWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.demand.services) > 0
}
