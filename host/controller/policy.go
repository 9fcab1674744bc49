package controller

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// verdict is why a policy, or a policy for a target, is not accepted; no reason: it is.
type verdict struct{ reason, message string }

func (c conditions) accept(w verdict) {
	if w.reason == "" {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "the policy is valid and may be used")
	} else {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, w.reason, "%s", w.message)
	}
}

// policyStatus sets the status of a policy.
func (v *view) policyStatus(name model.ObjectName, o metav1.Object, s *v1alpha1.PolicyStatus, targets []v1alpha1.TargetRef) {
	s.SpecVersion = specVersion(o, s.ObservedGeneration, s.SpecVersion)
	s.ObservedGeneration = o.GetGeneration()
	c := conditions{&s.Conditions, o.GetGeneration()}
	of := v.policies[name]
	on := v.count(name, of, s)
	whole := v.accepted(name, of, on)
	hidden := v.ancestors(s, of, targets, whole, c.generation)
	if whole.reason == "" && hidden.whole.reason != "" {
		whole = hidden.whole
	}
	if whole.reason != "" || hidden.overridden != "" { // nodes count it as in force where it would be
		s.Nodes.InForce, s.ProgrammedNodes = 0, fmt.Sprintf("0/%d", len(v.nodes))
	}
	c.accept(whole)
	counts := fmt.Sprintf("in force on %d of %d nodes", s.Nodes.InForce, len(v.nodes))
	if int(s.Nodes.Desired) != len(v.nodes) {
		counts += fmt.Sprintf("; it is for %d of them", s.Nodes.Desired)
	}
	switch {
	case whole.reason != "":
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "NotAccepted", "see condition Accepted")
		c.progress(false, true, whole.reason, whole.message)
	case hidden.overridden != "":
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "Overridden", "%s", hidden.overridden)
		c.progress(false, false, "", "")
	case s.Nodes.Desired == 0:
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, "NoNodes", "no node that it is for has reported")
		c.progress(true, false, "NoNodes", "no node that it is for has reported")
	case s.Nodes.InForce == s.Nodes.Desired:
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, "Programmed", "%s", counts)
		c.progress(false, false, "", "")
	case on.pending > 0:
		counts += fmt.Sprintf("; %d have not reported it, such as %s", on.pending, on.waiting) + text(s.Failures)
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "Reconciling", "%s", counts)
		c.progress(true, false, "Reconciling", counts)
	default:
		counts += text(s.Failures)
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "PartiallyProgrammed", "%s", counts)
		c.progress(false, true, s.Failures[0].Reason, counts)
	}
}

// nodesOf is what nodes say of a policy.
type nodesOf struct {
	pending int
	waiting string   // the first of them
	invalid *verdict // why a node does not accept it
}

// count counts the nodes of a policy, nil for one that is not valid.
func (v *view) count(name model.ObjectName, of *policy.Object, s *v1alpha1.PolicyStatus) (out nodesOf) {
	s.Nodes, s.Failures = v1alpha1.NodeCounts{}, nil
	rivals := v.rivals(of)
	if n := int32(len(v.nodes)); rivals == nil && v.everywhere(name, of, s.SpecVersion) {
		s.Nodes.Desired, s.Nodes.InForce = n, n
		s.ProgrammedNodes = fmt.Sprintf("%d/%d", n, n)
		return out
	}
	var failed failures
	for i := range v.nodes {
		n := &v.nodes[i]
		if of != nil && (!of.Nodes.Match(of.Policy.Name, &n.Node) || v.hidden(i, of, rivals)) {
			continue
		}
		s.Nodes.Desired++
		reason, message := v.onNode(i, name, of)
		switch {
		case !hasRead(observedOf(n.report, name.Kind), s.SpecVersion), reason == v1alpha1.ReasonPending:
			if out.pending++; out.waiting == "" {
				out.waiting = n.Name
			}
			continue
		case reason == "":
			s.Nodes.InForce++
			continue
		case reason == v1alpha1.ReasonFallenBack:
			s.Nodes.FallenBack++
		case reason == v1alpha1.ReasonInvalid, reason == v1alpha1.ReasonNotAllowed:
			if out.invalid == nil {
				out.invalid = &verdict{reason, "node " + n.Name + ": " + message}
			}
			s.Nodes.Failed++
		default:
			s.Nodes.Failed++
		}
		failed.add(reason, n.Name, message)
	}
	s.Failures = failed.most()
	s.ProgrammedNodes = fmt.Sprintf("%d/%d", s.Nodes.InForce, len(v.nodes))
	return out
}

// everywhere reports whether a policy is in force on all nodes for sure. It looks at no node: most policies of a large cluster
// are.
func (v *view) everywhere(name model.ObjectName, of *policy.Object, specVersion string) bool {
	if of == nil || of.Nodes.Restricted() || v.omitted || len(v.failing[name]) > 0 || !hasRead(v.least[name.Kind], specVersion) {
		return false
	}
	for i := range of.Policy.Steps {
		if p := v.plugins[of.Policy.Steps[i].Plugin]; p != nil && p.loaded < len(v.nodes) {
			return false
		}
	}
	return true
}

// observedOf returns up to which version a node has read policies of a kind.
func observedOf(r *v1alpha1.Report, kind string) string {
	if kind == v1alpha1.ClusterServicePolicyKind {
		return r.Observed.ClusterServicePolicies
	}
	return r.Observed.ServicePolicies
}

// onNode returns why a policy is not in force on a node that has read it, "" if it is.
func (v *view) onNode(i int, name model.ObjectName, of *policy.Object) (reason, message string) {
	if f := v.failing[name][i]; f != nil {
		return f.Reason, f.Message
	}
	for j := 0; of != nil && j < len(of.Policy.Steps); j++ {
		p := v.plugins[of.Policy.Steps[j].Plugin]
		switch {
		case p == nil: // of the configuration file
		case p.on[i] == nil, p.on[i].Digest == "" && p.on[i].Reason == "Pulling":
			return v1alpha1.ReasonPending, ""
		case p.on[i].Digest == "":
			return "PluginNotLoaded", "plugin " + p.object.Name + ": " + p.on[i].Reason // administrators read more in its status
		}
	}
	if v.nodes[i].report.PoliciesOmitted > 0 {
		return "Unknown", fmt.Sprintf("%d policies that are not in force are not in its report", v.nodes[i].report.PoliciesOmitted)
	}
	return "", ""
}

// accepted returns why a policy is not accepted as a whole.
func (v *view) accepted(name model.ObjectName, of *policy.Object, on nodesOf) verdict {
	if p := v.problems[name]; p != nil {
		w := verdict{v1alpha1.ReasonInvalid, p.Err.Error()}
		if p.NotAllowed {
			w.reason = v1alpha1.ReasonNotAllowed
		}
		if p.Kept {
			w.message += "; the version before stays in force"
		}
		return w
	}
	for i := 0; of != nil && i < len(of.Policy.Steps); i++ {
		step := &of.Policy.Steps[i]
		p := v.plugins[step.Plugin]
		if p == nil || p.module == nil || p.module.err != nil {
			continue
		}
		if err := p.module.check(step.Settings); err != nil {
			return verdict{v1alpha1.ReasonInvalid, fmt.Sprintf("spec.plugins[%d].settings%s", i, err)}
		}
	}
	if on.invalid != nil {
		return *on.invalid
	}
	return verdict{}
}
