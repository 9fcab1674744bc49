package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// reads are what sluice reads only for plugins that declare keys of it, with a permission of its own.
var reads = []struct {
	resource, objects, impact string
	declared                  func(key string) bool
}{
	{"pods", "the Pods of all namespaces", "values of Pods are absent, except in namespaces whose RoleBindings allow it", abi.IsPodKey},
	{"namespaces", "namespaces", "labels of namespaces are absent", func(key string) bool { return strings.HasPrefix(key, abi.KeyNamespaceLabel) }},
}

// CheckReads compares the permissions to read Pods and namespaces with what the policies of a configuration need. plugins returns
// a loaded plugin by name, and refused the verbs that the API server refuses for a resource; it is called only if a policy needs
// that.
func CheckReads(ctx context.Context, cfg *config.Config, plugins func(string) (policy.Plugin, error),
	refused func(ctx context.Context, resource string) ([]string, error)) (findings []probe.Finding) {
	for _, r := range reads {
		declared := keysByPlugin(cfg, plugins, r.declared)
		if len(declared) == 0 {
			continue
		}
		f := probe.Finding{Group: groupConfiguration, Name: "permission to list and watch " + r.resource, State: probe.OK}
		switch verbs, err := refused(ctx, r.resource); {
		case err != nil:
			f.State, f.Found = probe.Unknown, err.Error()
		case len(verbs) > 0:
			var who []string
			for _, name := range slices.Sorted(maps.Keys(declared)) {
				who = append(who, name+" ("+strings.Join(declared[name], ", ")+")")
			}
			f.State, f.Found = probe.Missing, "the API server refuses to "+strings.Join(verbs, " and ")+" "+r.objects
			f.Impact = r.impact + ": plugin " + strings.Join(who, "; ")
			f.Remedy = "apply the component deploy/kustomize/components/" + r.resource
		}
		findings = append(findings, f)
	}
	return findings
}

// keysByPlugin returns those of the keys that each plugin declares with the settings of its policies, sorted.
func keysByPlugin(cfg *config.Config, plugins func(string) (policy.Plugin, error), is func(key string) bool) map[string][]string {
	declared := map[string][]string{}
	for _, p := range cfg.PolicySet().All() {
		for step := range p.All() {
			plugin, err := plugins(step.Plugin)
			if err != nil {
				continue // the caller has reported it
			}
			for _, key := range plugin.Keys(step.Configured()) {
				if is(key) {
					declared[step.Plugin] = withSorted(declared[step.Plugin], key)
				}
			}
		}
	}
	return declared
}
