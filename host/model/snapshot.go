package model

import "slices"

// Change is the new value of one object. Exactly one of the kinds is named by Kind; a nil value of it means that the
// object is gone. Synced changes carry no object: they say that the initial state is complete.
type Change struct {
	Kind    Kind
	Name    Name // Node and ServiceCIDR: Name only
	Service *Service
	Slice   *EndpointSlice
	Node    *Node
	CIDR    *ServiceCIDR
	Partial bool // NodesKind: Snapshot.NodesPartial from now on
}

// Kind says what a Change is about.
type Kind uint8

// The kinds of Change.
const (
	Synced Kind = iota
	ServiceKind
	SliceKind
	NodeKind
	ServiceCIDRKind
	NodesKind // whether the Nodes are all of the cluster's
)

// Snapshot is cluster state. Apply changes it in place; the objects in it are immutable and may be shared.
type Snapshot struct {
	Services map[Name]*Service
	Slices   map[Name][]*EndpointSlice // by Service, sorted by name
	Nodes    map[string]*Node
	CIDRs    map[string]*ServiceCIDR
	Synced   bool
	// NodesPartial: Nodes has this node's own, and not all others of the cluster.
	NodesPartial bool

	slicesByName map[Name]*EndpointSlice // by its own name
}

// NewSnapshot makes an empty snapshot.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Services:     map[Name]*Service{},
		Slices:       map[Name][]*EndpointSlice{},
		Nodes:        map[string]*Node{},
		CIDRs:        map[string]*ServiceCIDR{},
		slicesByName: map[Name]*EndpointSlice{},
	}
}

// Apply takes a change in and names the Services that it touches, at most two (a slice that moves). A change of a
// Node or a ServiceCIDR touches none by name: the caller decides what follows from it.
func (s *Snapshot) Apply(c Change) []Name {
	switch c.Kind {
	case Synced:
		s.Synced = true
		return nil
	case ServiceKind:
		if c.Service == nil {
			delete(s.Services, c.Name)
		} else {
			s.Services[c.Name] = c.Service
		}
		return []Name{c.Name}
	case SliceKind:
		return s.applySlice(c)
	case NodeKind:
		if c.Node == nil {
			delete(s.Nodes, c.Name.Name)
		} else {
			s.Nodes[c.Name.Name] = c.Node
		}
	case NodesKind:
		s.NodesPartial = c.Partial
	case ServiceCIDRKind:
		if c.CIDR == nil {
			delete(s.CIDRs, c.Name.Name)
		} else {
			s.CIDRs[c.Name.Name] = c.CIDR
		}
	}
	return nil
}

// Slice gives a slice by its own name; nil for none.
func (s *Snapshot) Slice(name Name) *EndpointSlice { return s.slicesByName[name] }

func (s *Snapshot) applySlice(c Change) []Name {
	old := s.slicesByName[c.Name]
	var touched []Name
	if old != nil && (c.Slice == nil || c.Slice.Service != old.Service) {
		s.detach(old)
		delete(s.slicesByName, c.Name)
		touched = append(touched, old.Service)
	}
	if c.Slice == nil {
		return touched
	}
	svc := c.Slice.Service
	list := s.Slices[svc]
	if i, found := findSlice(list, c.Name); found {
		list[i] = c.Slice
	} else {
		s.Slices[svc] = slices.Insert(list, i, c.Slice)
	}
	s.slicesByName[c.Name] = c.Slice
	return append(touched, svc)
}

// detach takes a slice off its Service's.
func (s *Snapshot) detach(old *EndpointSlice) {
	list := s.Slices[old.Service]
	i, found := findSlice(list, old.Name)
	switch {
	case !found:
	case len(list) == 1:
		delete(s.Slices, old.Service)
	default:
		s.Slices[old.Service] = slices.Delete(list, i, i+1)
	}
}

// findSlice looks a slice up in a Service's.
func findSlice(list []*EndpointSlice, name Name) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(s *EndpointSlice, n Name) int { return s.Name.Compare(n) })
}
