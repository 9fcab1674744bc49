package planner

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// valueIndex finds the Services whose policy sees values of a Pod, a Node or a namespace, so that a change of these plans only
// those Services again. It has no entries for other Services. A Node has no namespace, and a namespace no name.
type valueIndex map[model.Name][]model.Name

// replace replaces the objects of a Service. Both lists are sorted.
func (x valueIndex) replace(service model.Name, old, objects []model.Name) {
	if slices.Equal(old, objects) {
		return
	}
	for _, name := range old {
		if _, kept := slices.BinarySearchFunc(objects, name, model.Name.Compare); kept {
			continue
		}
		rest := slices.DeleteFunc(x[name], func(s model.Name) bool { return s == service })
		if x[name] = rest; len(rest) == 0 {
			delete(x, name)
		}
	}
	for _, name := range objects {
		if _, had := slices.BinarySearchFunc(old, name, model.Name.Compare); !had {
			x[name] = append(x[name], service)
		}
	}
}

// of returns the Services whose policy sees values that a change changes. c has not been applied.
func (x valueIndex) of(c *model.Change, cluster *model.Snapshot) []model.Name {
	switch c.Kind {
	case model.NodeKind:
		if old := cluster.Nodes[c.Name.Name]; old != nil && c.Node != nil && maps.Equal(old.Labels, c.Node.Labels) {
			return nil
		}
	case model.PodKind, model.NamespaceKind:
	default:
		return nil
	}
	return x[c.Name]
}

// seesLoad reports whether a change is of load that the policy of its Service sees.
func (l *roster) seesLoad(c *model.Change) bool {
	if c.Kind != model.LoadKind {
		return false
	}
	s := l.services[c.Name]
	return s != nil && s.policy != nil && s.policy.values.declared.Load
}

// readers returns the Services whose policy sees labels of Nodes, of namespaces, or load, sorted.
func (l *roster) readers(kind model.Kind) (names []model.Name) {
	for name, s := range l.services {
		if s.policy == nil {
			continue
		}
		d := s.policy.values.declared
		if kind == model.NodeLabelsKind && d.Nodes || kind == model.NamespaceLabelsKind && d.Namespace || kind == model.LoadReadKind && d.Load {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.Name.Compare)
	return names
}

// indexedValues are the objects of a Service in the index.
type indexedValues struct {
	declared policy.Declared
	names    []model.Name // sorted
	slices   []*model.EndpointSlice
}

// indexValues indexes the objects of a Service's endpoints and its namespace if the policy of a port declares keys of them.
func (p *Planner) indexValues(name model.Name, s *policyState, ports []*policy.Policy) {
	now := indexedValues{declared: p.evaluator.Declares(ports...)}
	if now.declared != (policy.Declared{}) {
		if now.slices = p.cluster.Slices[name]; now.declared == s.values.declared && slices.Equal(now.slices, s.values.slices) {
			return
		}
		now.slices = slices.Clone(now.slices) // Snapshot.Apply modifies it
		now.add(name.Namespace)
	}
	p.values.replace(name, s.values.names, now.names)
	s.values = now
}

// add adds the names.
func (v *indexedValues) add(namespace string) {
	if v.declared.Namespace {
		v.names = append(v.names, model.Name{Namespace: namespace})
	}
	for _, slice := range v.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if v.declared.Pods && e.Pod != "" {
				v.names = append(v.names, model.Name{Namespace: namespace, Name: e.Pod})
			}
			if v.declared.Nodes && e.Node != "" {
				v.names = append(v.names, model.Name{Name: e.Node})
			}
		}
	}
	slices.SortFunc(v.names, model.Name.Compare)
	v.names = slices.Compact(v.names)
}
