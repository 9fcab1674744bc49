package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Node is what bindings ask of this node.
type Node struct {
	Name   string
	Labels map[string]string
	Known  bool // the Node has been read: Labels are its labels
}

// Nodes restricts a binding to some of the nodes. The zero value is no restriction; with both fields, both must match.
type Nodes struct {
	// Permille is how many of a thousand nodes match, 1–1000; 0: all. Which ones depends on the names of the node and of the
	// policy only: a node that matches keeps doing so when the number is raised, and other policies have other nodes.
	Permille int
	Selector Selector // on the labels of the Node; nil: none
}

// any reports whether there is a restriction.
func (n *Nodes) any() bool { return n.Permille != 0 || n.Selector != nil }

// Restricted reports whether there is a restriction.
func (n *Nodes) Restricted() bool { return n.any() }

// Match reports whether a node is among those of a policy.
func (n *Nodes) Match(policy string, node *Node) bool {
	in, _ := n.match(policy, node)
	return in
}

// match reports whether a node is among those of a binding to a policy, and why.
func (n *Nodes) match(policy string, node *Node) (in bool, why string) {
	if n.Permille != 0 {
		percent := strconv.FormatFloat(float64(n.Permille)/10, 'f', -1, 64)
		if position(policy, node.Name) >= n.Permille*(positions/1000) {
			return false, fmt.Sprintf("it is not among the %s %% of nodes", percent)
		}
		why = fmt.Sprintf("it is among the %s %% of nodes", percent)
	}
	if n.Selector == nil {
		return true, why
	}
	if why != "" {
		why += ", and "
	}
	switch {
	case !node.Known:
		return false, why + "its labels are not known"
	case !n.Selector.matches(node.Labels):
		return false, why + "its labels do not match"
	}
	return true, why + "its labels match"
}

// positions is how finely nodes are distributed: to a hundredth of a percent.
const positions = 10_000

// position returns the position of a node among those of a policy, 0–positions-1.
func position(policy, node string) int {
	sum := sha256.Sum256([]byte(policy + "\x00" + node))
	return int(binary.BigEndian.Uint64(sum[:]) % positions)
}

// SetNode sets the node that For decides for. It reports whether other bindings apply than before. Before the first call, no
// binding with Nodes does.
func (s *Set) SetNode(node Node) (changed bool) {
	before, was := s.onNode, s.node
	s.node, s.onNode = node, make([]bool, len(s.Bindings))
	for i := range s.Bindings {
		b := &s.Bindings[i]
		s.onNode[i], _ = b.Nodes.match(b.Policy, &s.node)
	}
	changed = !slices.Equal(before, s.onNode)
	for _, o := range s.objects.all {
		if changed {
			break
		}
		if o.Nodes.any() {
			then, _ := o.Nodes.match(o.Policy.Name, &was)
			now, _ := o.Nodes.match(o.Policy.Name, &s.node)
			changed = then != now
		}
	}
	return changed
}

// applies reports whether binding number i applies on this node.
func (s *Set) applies(i int) bool {
	return !s.Bindings[i].Nodes.any() || i < len(s.onNode) && s.onNode[i]
}

// NodeBinding is whether a binding with Nodes applies on this node.
type NodeBinding struct {
	Index   int // in Set.Bindings
	Policy  string
	Node    string
	Applies bool
	Why     string
}

// BindingNodes are the Nodes, of all that are known, on which a binding with Nodes applies.
type BindingNodes struct {
	Index  int // in Set.Bindings
	Policy string
	Known  int      // Nodes
	Names  []string // of those on which it applies, sorted
}

// String describes them.
func (b *BindingNodes) String() string {
	return fmt.Sprintf("bindings[%d] (policy %s) applies on %d of %d Nodes: %s", b.Index, b.Policy, len(b.Names), b.Known, list(b.Names))
}

// BindingNodes returns on which of the Nodes, by name, the bindings with Nodes apply.
func (s *Set) BindingNodes(nodes map[string]*model.Node) (out []BindingNodes) {
	for i := range s.Bindings {
		b := &s.Bindings[i]
		if !b.Nodes.any() {
			continue
		}
		on := BindingNodes{Index: i, Policy: b.Policy, Known: len(nodes)}
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			if in, _ := b.Nodes.match(b.Policy, &Node{Name: name, Labels: nodes[name].Labels, Known: true}); in {
				on.Names = append(on.Names, name)
			}
		}
		out = append(out, on)
	}
	return out
}

// String describes it.
func (b *NodeBinding) String() string {
	verb := "does not apply"
	if b.Applies {
		verb = "applies"
	}
	return fmt.Sprintf("bindings[%d] (policy %s) %s on node %s: %s", b.Index, b.Policy, verb, b.Node, b.Why)
}

// NodeBindings returns the bindings with Nodes: all of them for nil, otherwise those that match a Service, up to the one that
// applies.
func (s *Set) NodeBindings(svc *model.Service) (out []NodeBinding) {
	for i := range s.Bindings {
		b := &s.Bindings[i]
		if svc != nil && !b.Selects(svc) {
			continue
		}
		if b.Nodes.any() {
			applies, why := b.Nodes.match(b.Policy, &s.node)
			out = append(out, NodeBinding{i, b.Policy, s.node.Name, applies, why})
		}
		if svc != nil && s.applies(i) {
			break
		}
	}
	return out
}

// Selects reports whether a binding is for a Service, by its namespace and labels.
func (b *Binding) Selects(svc *model.Service) bool {
	return (len(b.Namespaces) == 0 || slices.Contains(b.Namespaces, svc.Name.Namespace)) && b.Selector.matches(svc.Labels)
}
