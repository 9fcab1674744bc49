package model

import "slices"

// Change is the new value of an object of the given Kind; nil means that the object is deleted. A change of kind Synced has no
// object: it marks the end of the initial state.
type Change struct {
	Kind      Kind
	Name      Name   // Nodes and ServiceCIDRs have no namespace, namespaces have no name
	Group     string // with ObjectKind and RouteKind: the kind
	Service   *Service
	Slice     *EndpointSlice
	Node      *Node
	CIDR      *ServiceCIDR
	Pod       *Pod
	Namespace *Namespace
	Load      *EndpointLoad
	Read      []string  // with NodeLabelsKind, NamespaceLabelsKind and LoadReadKind: sorted
	Value     bool      // with NodesPartialKind and PodsOnDemandKind
	Pods      PodsState // with PodsReadKind: of the Service called Name
	Object    any       // with ObjectKind: see Snapshot.Objects
	Route     *Route
}

// Kind is the kind of a Change.
type Kind uint8

// The kinds of Change.
const (
	Synced Kind = iota
	ServiceKind
	SliceKind
	NodeKind
	ServiceCIDRKind
	NodesPartialKind // sets Snapshot.NodesPartial
	PodKind
	PodsReadKind     // sets whether the Pods of a Service have been read
	PodsOnDemandKind // sets Snapshot.PodsOnDemand
	NamespaceKind
	NodeLabelsKind      // sets Snapshot.NodeLabels
	NamespaceLabelsKind // sets Snapshot.NamespaceLabels
	ObjectKind          // of sluice.dev, of the kind Group
	RouteKind           // of the kind Group
	LoadKind            // has the name of its Service
	LoadReadKind        // sets Snapshot.LoadRead
)

// ObjectName identifies an object of sluice.dev, or a route.
type ObjectName struct {
	Kind string
	Name Name // without a namespace if the kind has none
}

// Snapshot is cluster state. Apply modifies it in place; the objects in it are immutable and may be shared.
type Snapshot struct {
	Services   map[Name]*Service
	Slices     map[Name][]*EndpointSlice // by Service, sorted by name
	Nodes      map[string]*Node
	CIDRs      map[string]*ServiceCIDR
	Pods       map[Name]*Pod
	Namespaces map[string]*Namespace  // those with labels that policies see
	Loads      map[Name]*EndpointLoad // by Service
	// Objects are the policies and plugins of sluice.dev, as the source has read them: types of host/api/v1alpha1, which the
	// configuration converts.
	Objects map[ObjectName]any
	Routes  map[ObjectName]*Route
	Synced  bool
	// NodesPartial reports that Nodes contains this node's Node, but not all others.
	NodesPartial bool
	// PodsOnDemand reports that Pods are read only for Services whose policy needs them. Otherwise all have been read.
	PodsOnDemand bool
	// NodeLabels and NamespaceLabels are the labels that have been read of the other Nodes, and of namespaces.
	NodeLabels, NamespaceLabels LabelsRead
	LoadRead                    LabelsRead // the same for fields of load

	slicesByName map[Name]*EndpointSlice // by name of the slice
	podsOf       map[Name]PodsState      // by Service; none: PodsPending
}

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		Services:     map[Name]*Service{},
		Slices:       map[Name][]*EndpointSlice{},
		Nodes:        map[string]*Node{},
		CIDRs:        map[string]*ServiceCIDR{},
		Pods:         map[Name]*Pod{},
		Namespaces:   map[string]*Namespace{},
		Loads:        map[Name]*EndpointLoad{},
		Objects:      map[ObjectName]any{},
		Routes:       map[ObjectName]*Route{},
		slicesByName: map[Name]*EndpointSlice{},
		podsOf:       map[Name]PodsState{},
	}
}

// Apply applies a change and returns the names of the Services that it affects, at most two (for a slice that moves). For a Node,
// ServiceCIDR, Pod, namespace, load or route it returns none: the caller decides which Services these affect.
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
	case NodesPartialKind:
		s.NodesPartial = c.Value
	case ServiceCIDRKind:
		if c.CIDR == nil {
			delete(s.CIDRs, c.Name.Name)
		} else {
			s.CIDRs[c.Name.Name] = c.CIDR
		}
	case PodKind:
		if c.Pod == nil {
			delete(s.Pods, c.Name)
		} else {
			s.Pods[c.Name] = c.Pod
		}
	case ObjectKind:
		if c.Object == nil {
			delete(s.Objects, ObjectName{c.Group, c.Name})
		} else {
			s.Objects[ObjectName{c.Group, c.Name}] = c.Object
		}
	case RouteKind:
		if c.Route == nil {
			delete(s.Routes, ObjectName{c.Group, c.Name})
		} else {
			s.Routes[ObjectName{c.Group, c.Name}] = c.Route
		}
	case NamespaceKind:
		if c.Namespace == nil {
			delete(s.Namespaces, c.Name.Namespace)
		} else {
			s.Namespaces[c.Name.Namespace] = c.Namespace
		}
	case LoadKind:
		if c.Load == nil {
			delete(s.Loads, c.Name)
		} else {
			s.Loads[c.Name] = c.Load
		}
	case LoadReadKind:
		s.LoadRead = newLabelsRead(c.Read)
	case NodeLabelsKind:
		s.NodeLabels = newLabelsRead(c.Read)
	case NamespaceLabelsKind:
		s.NamespaceLabels = newLabelsRead(c.Read)
	case PodsReadKind:
		return s.applyPods(c)
	case PodsOnDemandKind:
		s.PodsOnDemand = c.Value
	}
	return nil
}

// Slice returns a slice by its name, nil if there is none.
func (s *Snapshot) Slice(name Name) *EndpointSlice { return s.slicesByName[name] }

// PodsOf returns whether the Pods of a Service have been read.
func (s *Snapshot) PodsOf(service Name) PodsState {
	if !s.PodsOnDemand {
		return PodsRead
	}
	return s.podsOf[service]
}

func (s *Snapshot) applyPods(c Change) []Name {
	if c.Pods == PodsPending {
		delete(s.podsOf, c.Name)
	} else {
		s.podsOf[c.Name] = c.Pods
	}
	return []Name{c.Name}
}

func (s *Snapshot) applySlice(c Change) []Name {
	old := s.slicesByName[c.Name]
	var affected []Name
	if old != nil && (c.Slice == nil || c.Slice.Service != old.Service) {
		s.detach(old)
		delete(s.slicesByName, c.Name)
		affected = append(affected, old.Service)
	}
	if c.Slice == nil {
		return affected
	}
	if !slices.IsSortedFunc(c.Slice.Ports, SlicePort.Compare) {
		sorted := *c.Slice
		sorted.Ports = slices.SortedStableFunc(slices.Values(sorted.Ports), SlicePort.Compare)
		c.Slice = &sorted
	}
	svc := c.Slice.Service
	list := s.Slices[svc]
	if i, found := findSlice(list, c.Name); found {
		list[i] = c.Slice
	} else {
		s.Slices[svc] = slices.Insert(list, i, c.Slice)
	}
	s.slicesByName[c.Name] = c.Slice
	return append(affected, svc)
}

// detach removes a slice from the list of its Service.
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

// findSlice returns the position of a slice in a list sorted by name.
func findSlice(list []*EndpointSlice, name Name) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(s *EndpointSlice, n Name) int { return s.Name.Compare(n) })
}
