package model

// Change is the new value of one object. Exactly one of the kinds is named by Kind; a nil value of it means that the
// object is gone. Synced changes carry no object: they say that the initial state is complete.
type Change struct {
	Kind    Kind
	Name    Name // Node and ServiceCIDR: Name only
	Service *Service
	Slice   *EndpointSlice
	Node    *Node
	CIDR    *ServiceCIDR
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
)

// Snapshot is cluster state. Apply changes it in place; the objects in it are immutable and may be shared.
type Snapshot struct {
	Services map[Name]*Service
	Slices   map[Name]map[Name]*EndpointSlice // by Service, then by slice
	Nodes    map[string]*Node
	CIDRs    map[string]*ServiceCIDR
	Synced   bool

	owner map[Name]Name // slice → the Service it was filed under
}

// NewSnapshot makes an empty snapshot.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Services: map[Name]*Service{},
		Slices:   map[Name]map[Name]*EndpointSlice{},
		Nodes:    map[string]*Node{},
		CIDRs:    map[string]*ServiceCIDR{},
		owner:    map[Name]Name{},
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
	case ServiceCIDRKind:
		if c.CIDR == nil {
			delete(s.CIDRs, c.Name.Name)
		} else {
			s.CIDRs[c.Name.Name] = c.CIDR
		}
	}
	return nil
}

func (s *Snapshot) applySlice(c Change) []Name {
	var touched []Name
	old, had := s.owner[c.Name]
	if had && (c.Slice == nil || c.Slice.Service != old) {
		delete(s.Slices[old], c.Name)
		if len(s.Slices[old]) == 0 {
			delete(s.Slices, old)
		}
		delete(s.owner, c.Name)
		touched = append(touched, old)
	}
	if c.Slice == nil {
		return touched
	}
	svc := c.Slice.Service
	if s.Slices[svc] == nil {
		s.Slices[svc] = map[Name]*EndpointSlice{}
	}
	s.Slices[svc][c.Name] = c.Slice
	s.owner[c.Name] = svc
	return append(touched, svc)
}
