package agent

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// setNeeds passes the inputs that the loaded plugins need to a source. A directory of manifests always provides all of them.
//
// Needs travel in this direction only: plugin, plugin set, agent, source. The inputs travel the other way as part of the
// cluster state: source, model, planner, policy, plugin.
func (a *Agent) setNeeds(s clusterSource, cfg *config.Config) {
	a.recordNeeds(cfg)
	if s.kube != nil {
		s.kube.SetNeeds(SourceNeeds(cfg, a.plugins.Get))
	}
}

// SourceNeeds returns what the policies of Services need of a source. loaded returns a plugin by name.
func SourceNeeds(cfg *config.Config, loaded func(string) (policy.Plugin, error)) kube.NeedsOn {
	return func(node *model.Node) func(*model.Service) kube.Needs {
		return serviceNeeds(cfg, loaded, node)
	}
}

func serviceNeeds(cfg *config.Config, loaded func(string) (policy.Plugin, error), node *model.Node) func(*model.Service) kube.Needs {
	policies := cfg.PolicySet()
	policies.SetNode(planner.PolicyNode(cfg.HostnameOverride, node))
	binds := dataplane.All().Get(cfg.Mode).BindsAddresses()
	return func(s *model.Service) (needs kube.Needs) {
		needs.Nodes = binds && (len(s.LoadBalancerIPs) > 0 || len(s.ExternalIPs) > 0 && cfg.ExternalIPs != planner.IgnoreExternalIPs) // none of these may be a Node's
		// While the annotation chooses no policy, only the evaluator knows which one it has chosen before.
		for _, p := range policies.Possible(s) {
			for step := range p.All() {
				if plugin, err := loaded(step.Plugin); err == nil {
					needs.Nodes = needs.Nodes || plugin.Needs(step.Configured())&abi.NeedNodes != 0
					addKeys(&needs, plugin.Keys(step.Configured()))
				}
			}
		}
		return needs
	}
}

// AllNeeds returns what the policies of a configuration need of a source, on whatever node and for whatever Service, in addition
// to declared keys.
func AllNeeds(cfg *config.Config, loaded func(string) (policy.Plugin, error), keys []string) (needs kube.Needs) {
	addKeys(&needs, keys)
	set := cfg.PolicySet()
	add := func(p *policy.Policy) {
		for i := range p.Steps {
			if plugin, err := loaded(p.Steps[i].Plugin); err == nil {
				needs.Nodes = needs.Nodes || plugin.Needs(p.Steps[i].Configured())&abi.NeedNodes != 0
				addKeys(&needs, plugin.Keys(p.Steps[i].Configured()))
			}
		}
	}
	for _, p := range set.All() {
		add(p)
	}
	return needs
}

// RecordingKeep returns the values of Pods and Services that the plugins of a configuration declare.
func RecordingKeep(cfg *config.Config, set *plugins.Set) recording.Keep {
	n := AllNeeds(cfg, set.Get, nil)
	return recording.Keep{PodLabels: n.Pods.Labels, PodAnnotations: n.Pods.Annotations, ServiceAnnotations: n.Annotations, NamespaceLabels: n.NamespaceLabels, Load: n.Load}
}

// addKeys adds declared keys to needs. A source has the labels of Services anyway.
func addKeys(needs *kube.Needs, keys []string) {
	for _, key := range keys {
		switch kind, name, _ := abi.KeyKind(key); kind {
		case abi.KeyPodCPU:
			needs.Pods.Full = true
		case abi.KeyPodLabel:
			needs.Pods.Labels = withSorted(needs.Pods.Labels, name)
		case abi.KeyPodAnnotation:
			needs.Pods.Annotations = withSorted(needs.Pods.Annotations, name)
		case abi.KeyServiceAnnotation:
			needs.Annotations = withSorted(needs.Annotations, name)
		case abi.KeyNodeLabel:
			needs.NodeLabels = withSorted(needs.NodeLabels, name)
		case abi.KeyNamespaceLabel:
			needs.NamespaceLabels = withSorted(needs.NamespaceLabels, name)
		case abi.KeyLoad:
			needs.Load = withSorted(needs.Load, name)
		}
	}
}

// withSorted adds a string to a sorted list, once.
func withSorted(list []string, s string) []string {
	if i, found := slices.BinarySearch(list, s); !found {
		return slices.Insert(list, i, s)
	}
	return list
}
