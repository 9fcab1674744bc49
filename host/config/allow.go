package config

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/policy"
)

// allowEntry lets the annotation sluice.dev/policy of Services choose policies.
type allowEntry struct {
	Namespaces []string `json:"namespaces"`
	Policies   []string `json:"policies"`
}

func (p *parser) allow(list []allowEntry, policies []policy.Policy) (out []policy.Allow) {
	for i, e := range list {
		path := fmt.Sprintf("allow[%d]", i)
		for j, ns := range e.Namespaces {
			p.name(fmt.Sprintf("%s.namespaces[%d]", path, j), ns)
		}
		if len(e.Policies) == 0 {
			p.errorf(path+".policies", "required")
		}
		for j, name := range e.Policies {
			at := fmt.Sprintf("%s.policies[%d]", path, j)
			if p.policyName(at, name, policies); name != "" && slices.Contains(e.Policies[:j], name) {
				p.errorf(at, "%q: duplicate", name)
			}
		}
		out = append(out, policy.Allow(e))
	}
	return out
}
