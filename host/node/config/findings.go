package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// policyWarnings returns messages about policies, bindings and plugins that have no effect.
func (c *Config) policyWarnings() (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i, p := range c.Plugins {
		if !c.uses(p.Name) {
			warn("plugins[%d]: no policy uses plugin %s, so it is not loaded", i, p.Name)
		}
	}
	for i := range c.Policies {
		if name := c.Policies[i].Name; !c.attaches(name) {
			warn("policies[%d]: policy %s applies to no Service: no binding, allow or defaultPolicy names it", i, name)
		}
	}
	found, complete := c.PolicySet().Unreachable()
	for _, u := range found {
		switch by := fieldNames("bindings", u.By); len(u.By) {
		case 0:
			warn("bindings[%d]: never applies: its selector contradicts itself", u.Index)
		case 1:
			warn("bindings[%d]: never applies: %s selects all Services that it does", u.Index, by)
		default:
			warn("bindings[%d]: never applies: each of its namespaces is one in which %s selects all Services that it does", u.Index, by)
		}
	}
	if !complete {
		warn("bindings: too many to find out whether all of them can apply")
	}
	return out
}

// UnusedBindings returns messages about bindings that select none of the Services, except those that can never apply, which
// Warnings has.
func (c *Config) UnusedBindings(services map[model.Name]*model.Service) (out []string) {
	set := c.PolicySet()
	never, _ := set.Unreachable()
	for i := range set.Bindings {
		used := slices.ContainsFunc(never, func(u policy.Unreachable) bool { return u.Index == i })
		for _, svc := range services {
			used = used || set.Bindings[i].Selects(svc)
		}
		if !used {
			out = append(out, fmt.Sprintf("bindings[%d]: selects no Service of the manifests", i))
		}
	}
	return out
}

// uses reports whether a policy has a plugin, in its chain or its shadow.
func (c *Config) uses(plugin string) bool {
	return len(c.SettingsOf(plugin))+len(c.SettingsOf(policy.ShadowPlugin(plugin))) > 0
}

// attaches reports whether the configuration attaches a policy to Services.
func (c *Config) attaches(name string) bool {
	return c.DefaultPolicy == name || slices.ContainsFunc(c.Bindings, func(b Binding) bool { return b.Policy == name }) ||
		slices.ContainsFunc(c.Allow, func(a Allow) bool { return slices.Contains(a.Policies, name) })
}

// fieldNames returns the paths of entries of a list: "a[1] or a[2]".
func fieldNames(list string, indexes []int) string {
	var out []string
	for _, i := range indexes {
		out = append(out, fmt.Sprintf("%s[%d]", list, i))
	}
	return strings.Join(out, " or ")
}
