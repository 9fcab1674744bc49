package controller

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// maxSettingLines bounds the fields of settings that a status has.
const maxSettingLines = 64

// pluginStatus sets the status of a ServicePlugin.
func (v *view) pluginStatus(o *v1alpha1.ServicePlugin) {
	s, p := &o.Status, v.plugins[o.Name]
	s.SpecVersion = specVersion(o, s.ObservedGeneration, s.SpecVersion)
	resolved := s.ObservedGeneration == o.Generation // what the status says of the module is about this spec
	s.ObservedGeneration = o.Generation
	c := conditions{&s.Conditions, o.Generation}
	problem := v.problems[model.ObjectName{Kind: v1alpha1.ServicePluginKind, Name: model.Name{Name: o.Name}}]
	if problem != nil {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "Invalid", "%v", problem.Err)
	} else {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Accepted", "the plugin may be used")
	}
	v.resolve(c, o, p, resolved)
	v.pluginNodes(c, o, p, problem != nil)
}

// resolve sets what the module says, and the condition Resolved.
func (v *view) resolve(c conditions, o *v1alpha1.ServicePlugin, p *pluginView, resolved bool) {
	s, m := &o.Status, p.module
	switch {
	case o.Spec.Source.Type == v1alpha1.FileSource:
		s.Needs, s.Settings, s.Digest = nil, nil, ""
		c.set(v1alpha1.ConditionResolved, metav1.ConditionUnknown, "OnNodes", "the file is on the nodes: they alone read it")
	case m == nil && resolved: // a new leader has not read it yet
	case m == nil:
		c.set(v1alpha1.ConditionResolved, metav1.ConditionUnknown, "Pulling", "the module is being read")
	case m.err != nil:
		c.set(v1alpha1.ConditionResolved, metav1.ConditionFalse, m.reason, "%v", m.err)
	default:
		s.Digest, s.Needs, s.Settings = m.digest, m.manifest.Needs, m.settings
		c.set(v1alpha1.ConditionResolved, metav1.ConditionTrue, "Resolved", "%s %s, role %s", m.manifest.Title, m.manifest.Release, m.manifest.Role)
	}
}

// pluginNodes counts the nodes, and sets the condition Programmed.
func (v *view) pluginNodes(c conditions, o *v1alpha1.ServicePlugin, p *pluginView, invalid bool) {
	s := &o.Status
	s.Nodes, s.Failures, s.LoadedNodes = v1alpha1.NodeCounts{}, nil, ""
	var failed failures
	digests, waiting := map[string]int{}, ""
	pending := 0
	for i := range v.nodes {
		n, on := &v.nodes[i], p.on[i]
		if s.Nodes.Desired++; !p.used {
			continue
		}
		switch {
		case !hasRead(n.report.Observed.ServicePlugins, s.SpecVersion) || on == nil || on.Reason == "Pulling":
			if pending++; waiting == "" {
				waiting = n.Name
			}
		case on.Reason != "" && !(on.Reason == "SettingsRefused" && on.Digest != ""): // settings are of a policy
			s.Nodes.Failed++
			failed.add(on.Reason, n.Name, on.Message)
		case s.Digest != "" && o.Spec.Source.Type != v1alpha1.FileSource && on.Digest != s.Digest && p.module != nil && p.module.err == nil:
			s.Nodes.Failed++
			failed.add("DigestMismatch", n.Name, "it has "+on.Digest)
		default:
			s.Nodes.InForce++
			digests[on.Digest]++
		}
	}
	if o.Spec.Source.Type == v1alpha1.FileSource {
		for digest, n := range digests {
			if n > digests[s.Digest] || n == digests[s.Digest] && digest < s.Digest {
				s.Digest = digest
			}
		}
	}
	s.Failures = failed.most()
	counts := fmt.Sprintf("loaded on %d of %d nodes", s.Nodes.InForce, s.Nodes.Desired)
	switch all := s.Nodes.InForce == s.Nodes.Desired; {
	case !p.used:
		s.Nodes = v1alpha1.NodeCounts{}
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, "Unused", "no policy uses the plugin, so nodes do not load it")
		c.progress(false, invalid, "Invalid", "see condition Accepted")
		return
	case len(v.nodes) == 0:
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, "NoNodes", "no node has reported")
		c.progress(true, false, "NoNodes", "no node has reported")
	case all:
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, "Programmed", "%s", counts)
		c.progress(false, false, "", "")
	case pending > 0:
		counts += fmt.Sprintf("; %d have not reported it, such as %s", pending, waiting) + text(s.Failures)
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "Reconciling", "%s", counts)
		c.progress(true, false, "Reconciling", counts)
	default:
		counts += text(s.Failures)
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, "PartiallyProgrammed", "%s", counts)
		c.progress(false, true, s.Failures[0].Reason, counts)
	}
	s.LoadedNodes = fmt.Sprintf("%d/%d", s.Nodes.InForce, s.Nodes.Desired)
}
