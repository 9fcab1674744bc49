package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// CheckPods compares the permission to read Pods with what the policies of a configuration need. plugins returns a loaded plugin by
// name, and refused the verbs that the API server refuses; it is called only if a policy needs Pods.
func CheckPods(ctx context.Context, cfg *config.Config, plugins func(string) (policy.Plugin, error), refused func(context.Context) ([]string, error)) []probe.Finding {
	declared := podKeysByPlugin(cfg, plugins)
	if len(declared) == 0 {
		return nil
	}
	f := probe.Finding{Group: groupConfiguration, Name: "permission to list and watch Pods", State: probe.OK}
	switch verbs, err := refused(ctx); {
	case err != nil:
		f.State, f.Found = probe.Unknown, err.Error()
	case len(verbs) > 0:
		var who []string
		for _, name := range slices.Sorted(maps.Keys(declared)) {
			who = append(who, name+" ("+strings.Join(declared[name], ", ")+")")
		}
		f.State, f.Found = probe.Missing, "the API server refuses to "+strings.Join(verbs, " and ")+" the Pods of all namespaces"
		f.Impact = "values of Pods are absent for plugin " + strings.Join(who, "; ") + ", except in namespaces whose RoleBindings allow it"
		f.Remedy = "apply the component deploy/kustomize/components/pods"
	}
	return []probe.Finding{f}
}

// podKeysByPlugin returns the keys of Pods that each plugin declares with the settings of its policies.
func podKeysByPlugin(cfg *config.Config, plugins func(string) (policy.Plugin, error)) map[string][]string {
	declared := map[string][]string{}
	for _, p := range cfg.PolicySet().All() {
		for step := range p.All() {
			plugin, err := plugins(step.Plugin)
			if err != nil {
				continue // the caller has reported it
			}
			for _, key := range plugin.Keys(step.Configured()) {
				var needs kube.Needs
				if addKeys(&needs, []string{key}); needs.Pods.Full || len(needs.Pods.Labels)+len(needs.Pods.Annotations) > 0 {
					declared[step.Plugin] = withSorted(declared[step.Plugin], key)
				}
			}
		}
	}
	return declared
}
