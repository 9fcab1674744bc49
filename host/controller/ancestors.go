package controller

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// targetsOf is what keeps a policy from all of its targets.
type targetsOf struct {
	whole      verdict // the policy is not accepted for any
	overridden string  // by what, on all nodes and for all targets
}

// ancestors sets the status of a ServicePolicy for each of its targets, and returns what is true for all of them.
func (v *view) ancestors(s *v1alpha1.PolicyStatus, of *policy.Object, targets []v1alpha1.TargetRef, whole verdict, generation int64) (all targetsOf) {
	before := s.Ancestors
	s.Ancestors = nil
	accepted, hidden := 0, 0
	for _, t := range targets {
		t.Kind = "Service"
		a := v1alpha1.PolicyAncestor{AncestorRef: t, ControllerName: Name}
		if i := slices.IndexFunc(before, func(b v1alpha1.PolicyAncestor) bool { return b.AncestorRef == t }); i >= 0 {
			a.Conditions = before[i].Conditions
		}
		w, overridden := whole, ""
		if w.reason == "" && of != nil {
			w, overridden = v.target(of, t)
		}
		conditions{&a.Conditions, generation}.accept(w)
		s.Ancestors = append(s.Ancestors, a)
		switch {
		case w.reason != "":
			all.whole = w
		case overridden != "":
			accepted, hidden, all.overridden = accepted+1, hidden+1, overridden
		default:
			accepted++
		}
	}
	if accepted > 0 {
		all.whole = verdict{}
	}
	if hidden < accepted {
		all.overridden = ""
	}
	return all
}

// target returns why a policy is not accepted for a target, or else by what it is overridden there on all nodes.
func (v *view) target(of *policy.Object, t v1alpha1.TargetRef) (w verdict, overridden string) {
	svc := v.services[model.Name{Namespace: of.Name.Namespace, Name: t.Name}]
	if svc == nil {
		return verdict{"TargetNotFound", fmt.Sprintf("there is no Service %s", t.Name)}, ""
	}
	if t.SectionName != "" && !slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.Name == t.SectionName }) {
		return verdict{"TargetNotFound", fmt.Sprintf("Service %s has no port %s", t.Name, t.SectionName)}, ""
	}
	for _, c := range v.set.Rivals(of, svc, t.SectionName) {
		if c.Nodes.Restricted() || c.Shadow && !of.Shadow || v.passedOver(c) {
			continue // it leaves the target to the policy on some nodes
		}
		if c.Name.Namespace == "" {
			return w, "ClusterServicePolicy " + c.Name.Name + " overrides it"
		}
		return verdict{"Conflicted", fmt.Sprintf("ServicePolicy %s is older and has the same target", c.Name.Name)}, ""
	}
	return w, ""
}

// passedOver reports whether the guard of a policy passes it over on a node.
func (v *view) passedOver(o *policy.Object) bool {
	for i := range v.failing[policyName(o.Name.Namespace, o.Name.Name)] {
		if v.passedOverOn(i, o) {
			return true
		}
	}
	return false
}

func (v *view) passedOverOn(i int, o *policy.Object) bool {
	f := v.failing[policyName(o.Name.Namespace, o.Name.Name)][i]
	return f != nil && (f.Reason == v1alpha1.ReasonFallenBack || f.Reason == v1alpha1.ReasonPending)
}

// rivals returns what goes before a ServicePolicy for each of its targets; nil: there is a target where nothing does.
func (v *view) rivals(of *policy.Object) (out [][]*policy.Object) {
	for i := 0; of != nil && i < len(of.Targets); i++ {
		t := &of.Targets[i]
		svc := v.services[model.Name{Namespace: of.Name.Namespace, Name: t.Service}]
		if svc == nil {
			continue
		}
		list := v.set.Rivals(of, svc, t.Port)
		if len(list) == 0 {
			return nil
		}
		out = append(out, list)
	}
	return out
}

// hidden reports whether something that goes before a policy applies to all of its targets on a node.
func (v *view) hidden(i int, of *policy.Object, rivals [][]*policy.Object) bool {
	for _, list := range rivals {
		if !slices.ContainsFunc(list, func(c *policy.Object) bool {
			return !(c.Shadow && !of.Shadow) && c.Nodes.Match(c.Policy.Name, &v.nodes[i].Node) && !v.passedOverOn(i, c)
		}) {
			return false
		}
	}
	return len(rivals) > 0
}
