package agent

import (
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// setNeeds tells a source which inputs the plugins of a configuration need. A directory of manifests provides all of them
// anyway.
func (a *Agent) setNeeds(s clusterSource, cfg *config.Config) {
	if s.kube != nil {
		s.kube.SetNeedsNodes(servicesThatNeed(abi.NeedNodes, cfg, a.plugins.Needs(cfg)))
	}
}

// servicesThatNeed selects the Services whose policy has a plugin that needs an input; nil: no policy has. needs are by
// the policy's name.
func servicesThatNeed(input uint32, cfg *config.Config, needs map[string]uint32) func(*model.Service) bool {
	for _, n := range needs {
		if n&input != 0 {
			policies := cfg.PolicySet()
			return func(s *model.Service) bool {
				p, _ := policies.For(s) // an error leaves the policy that applies without the annotation
				return p != nil && needs[p.Name]&input != 0
			}
		}
	}
	return nil
}
