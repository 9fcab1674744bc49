package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Object is a policy that an object of the cluster attaches to Services: a ServicePolicy, or, without a namespace, a
// ClusterServicePolicy. It is immutable once it is in a Set.
type Object struct {
	Name    model.Name
	Created int64 // Unix seconds; of two objects of a layer, the older one applies
	// Policy has a name that no policy of the configuration file has, see ObjectPolicyName.
	Policy *Policy
	// Shadow: the chain of the policy is compared with what is in force without it, and enforced nowhere.
	Shadow bool
	Nodes  Nodes

	Targets []Target // of a ServicePolicy

	Namespaces []string // of a ClusterServicePolicy; empty: every namespace
	Selector   Selector // likewise
	Overrides  bool     // likewise: it applies before ServicePolicies, annotations and bindings
}

// Target is a Service of the namespace of a ServicePolicy, or a port of it.
type Target struct {
	Service string
	Port    string // its name; "": all ports
}

// ObjectPolicyName returns the name of the policy of an object. Policies of the configuration file have no slash in theirs.
func ObjectPolicyName(name model.Name) string {
	if name.Namespace == "" {
		return "ClusterServicePolicy/" + name.Name
	}
	return "ServicePolicy/" + name.String()
}

// ObjectOf returns the name of the object that has a policy of this name.
func ObjectOf(policy string) (name model.Name, ok bool) {
	switch kind, rest, _ := strings.Cut(policy, "/"); kind {
	case "ClusterServicePolicy":
		return model.Name{Name: rest}, true
	case "ServicePolicy":
		name.Namespace, name.Name, ok = strings.Cut(rest, "/")
	}
	return name, ok
}

// Selects reports whether an object is for a Service or a port of it.
func (o *Object) Selects(svc *model.Service) bool {
	if o.Name.Namespace == "" {
		return (len(o.Namespaces) == 0 || slices.Contains(o.Namespaces, svc.Name.Namespace)) && o.Selector.matches(svc.Labels)
	}
	return o.Name.Namespace == svc.Name.Namespace && slices.ContainsFunc(o.Targets, func(t Target) bool { return t.Service == svc.Name.Name })
}

// targets returns how an object is for a port: 0: not, 1: as for all of the Service's, 2: by its name.
func (o *Object) targets(svc *model.Service, port string) (how int) {
	for _, t := range o.Targets {
		switch {
		case t.Service != svc.Name.Name:
		case t.Port == "":
			how = max(how, 1)
		case t.Port == port:
			how = 2
		}
	}
	return how
}

// objects are the objects of a Set, by how they are looked for: each list is sorted by age.
type objects struct {
	all       map[model.Name]*Object
	targeted  map[model.Name][]*Object // ServicePolicies, by Service
	overrides []*Object                // ClusterServicePolicies
	defaults  []*Object                // likewise
	// shadows are the policies with the chain of an object as a shadow. They are kept, because a policy is known by its address.
	shadows map[shadowed]*Policy
}

type shadowed struct{ of, by *Policy }

// older orders objects of a layer: the first one applies.
func older(a, b *Object) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
}

// SetObjects replaces all objects.
func (s *Set) SetObjects(list []*Object) {
	s.objects = objects{all: make(map[model.Name]*Object, len(list)), targeted: map[model.Name][]*Object{}, shadows: map[shadowed]*Policy{}}
	for _, o := range slices.SortedFunc(slices.Values(list), older) {
		s.objects.all[o.Name] = o
		switch {
		case o.Name.Namespace == "" && o.Overrides:
			s.objects.overrides = append(s.objects.overrides, o)
		case o.Name.Namespace == "":
			s.objects.defaults = append(s.objects.defaults, o)
		default:
			for _, t := range o.Targets {
				name := model.Name{Namespace: o.Name.Namespace, Name: t.Service}
				if list := s.objects.targeted[name]; len(list) == 0 || list[len(list)-1] != o {
					s.objects.targeted[name] = append(list, o)
				}
			}
		}
	}
}

// Guarded returns the policies with a guard, sorted by name.
func (s *Set) Guarded() (out []*Policy) {
	for _, p := range s.Policies {
		if p.Guard.FailedPercent > 0 {
			out = append(out, p)
		}
	}
	for _, o := range s.objects.all {
		if o.Policy.Guard.FailedPercent > 0 {
			out = append(out, o.Policy)
		}
	}
	slices.SortFunc(out, func(p, q *Policy) int { return cmp.Compare(p.Name, q.Name) })
	return out
}

// Follow takes over from a set that this one replaces what is known of the node and of guards.
func (s *Set) Follow(before *Set) {
	s.SetNode(before.node)
	for _, p := range s.Guarded() {
		s.Suspend(p.Name, before.suspended[p.Name])
	}
}

// samePorts reports whether all ports of a Service have the same policy for sure.
func (s *Set) samePorts(svc *model.Service) bool { return len(s.objects.targeted[svc.Name]) == 0 }

// Objects returns all objects, sorted by name.
func (s *Set) Objects() []*Object {
	return slices.SortedFunc(maps.Values(s.objects.all), func(a, b *Object) int { return a.Name.Compare(b.Name) })
}

// Rivals returns the objects that go before a ServicePolicy for a target, a Service or a port of it, in the order of precedence.
func (s *Set) Rivals(o *Object, svc *model.Service, port string) (out []*Object) {
	for _, c := range s.objects.overrides {
		if c.Selects(svc) {
			out = append(out, c)
		}
	}
	for _, c := range s.objects.targeted[svc.Name] {
		if c == o {
			break
		}
		if slices.Contains(c.Targets, Target{svc.Name.Name, port}) {
			out = append(out, c)
		}
	}
	return out
}

// withShadow returns a policy, nil for none, with the chain of an object as its shadow.
func (s *Set) withShadow(of *Policy, o *Object) *Policy {
	key := shadowed{of, o.Policy}
	if p := s.objects.shadows[key]; p != nil {
		return p
	}
	if s.objects.shadows == nil {
		s.objects.shadows = map[shadowed]*Policy{}
	}
	p := &Policy{Name: o.Policy.Name, FromObject: true}
	if of != nil {
		p = of.clone()
	}
	p.Shadow = slices.Clone(o.Policy.Steps)
	for i := range p.Shadow {
		p.Shadow[i].Plugin = ShadowPlugin(p.Shadow[i].Plugin)
	}
	s.objects.shadows[key] = p
	return p
}

// State is what a Candidate is for a Service port.
type State uint8

// States of a Candidate.
const (
	Applies   State = iota
	Hidden          // another one applies
	Shadows         // it is compared with what applies
	NotOnNode       // it is for other nodes
	Suspended       // its guard has fallen back, or has not let it begin
)

func (s State) String() string {
	return [...]string{"applies", "hidden", "shadow", "not on this node", "passed over by its guard"}[s]
}

// Layers of precedence.
const (
	LayerOverride   = "ClusterServicePolicy, overrides"
	LayerPort       = "ServicePolicy of the port"
	LayerService    = "ServicePolicy"
	LayerAnnotation = "annotation"
	LayerBinding    = "binding"
	LayerDefaults   = "ClusterServicePolicy"
	LayerDefault    = "defaultPolicy"
)

// Candidate is something that gives a Service port its policy, or would if nothing before it did.
type Candidate struct {
	Layer  string
	Policy *Policy
	State  State
	Why    string // of NotOnNode
}

// state returns what an object is while nothing has been found before it.
func (s *Set) state(o *Object) (State, string) {
	if o.Nodes.any() {
		if in, why := o.Nodes.match(o.Policy.Name, &s.node); !in {
			return NotOnNode, why
		}
	}
	switch {
	case s.suspended[o.Policy.Name]:
		return Suspended, ""
	case o.Shadow:
		return Shadows, ""
	}
	return Applies, ""
}

// candidates passes what gives a Service port its policy to yield, in the order of precedence, until that returns false. What the
// annotation and the bindings choose is one candidate.
func (s *Set) candidates(svc *model.Service, port string, file *Policy, layer string, yield func(layer string, o *Object, p *Policy) bool) {
	for _, o := range s.objects.overrides {
		if o.Selects(svc) && !yield(LayerOverride, o, o.Policy) {
			return
		}
	}
	for _, of := range [...]struct {
		how   int
		layer string
	}{{2, LayerPort}, {1, LayerService}} {
		for _, o := range s.objects.targeted[svc.Name] {
			if o.targets(svc, port) == of.how && !yield(of.layer, o, o.Policy) {
				return
			}
		}
	}
	if file != nil && layer != LayerDefault && !yield(layer, nil, file) {
		return
	}
	for _, o := range s.objects.defaults {
		if o.Selects(svc) && !yield(LayerDefaults, o, o.Policy) {
			return
		}
	}
	if file != nil && layer == LayerDefault {
		yield(layer, nil, file)
	}
}

// For returns the policy of a Service port, nil for none: the first one of the candidates that is in force on this node. last and
// the error are about the annotation, see ofFile.
func (s *Set) For(svc *model.Service, port, last string) (*Policy, *ChoiceError) {
	found, layer, err := s.ofFile(svc, last)
	if len(s.objects.all) == 0 {
		return found, err
	}
	var decides *Policy
	var shadow *Object
	s.candidates(svc, port, found, layer, func(_ string, o *Object, p *Policy) bool {
		state := Applies
		if o != nil {
			state, _ = s.state(o)
		}
		switch state {
		case Applies:
			decides = p
			return false
		case Shadows:
			if shadow == nil {
				shadow = o
			}
		}
		return true
	})
	if shadow != nil {
		decides = s.withShadow(decides, shadow)
	}
	return decides, err
}

// Candidates returns what gives a Service port its policy, or would if nothing before it did, in the order of precedence.
func (s *Set) Candidates(svc *model.Service, port, last string) (out []Candidate) {
	found, layer, _ := s.ofFile(svc, last)
	applies, shadows := false, false
	s.candidates(svc, port, found, layer, func(layer string, o *Object, p *Policy) bool {
		c := Candidate{Layer: layer, Policy: p}
		if o != nil {
			c.State, c.Why = s.state(o)
		}
		switch {
		case c.State == Applies && !applies:
			applies = true
		case c.State == Applies, c.State == Shadows && (shadows || applies):
			c.State = Hidden
		case c.State == Shadows:
			shadows = true
		}
		out = append(out, c)
		return true
	})
	return out
}
