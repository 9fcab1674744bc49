package agent

import (
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// setNeeds passes the inputs that the loaded plugins need to a source. A directory of manifests always provides all of them.
//
// Needs travel in this direction only: plugin, plugin set, agent, source. The inputs travel the other way as part of the
// cluster state: source, model, planner, policy, plugin.
func (a *Agent) setNeeds(s clusterSource, cfg *config.Config) {
	if s.kube != nil {
		s.kube.SetNeedsNodes(servicesThatNeed(abi.NeedNodes, cfg, a.plugins.Needs(cfg)))
	}
}

// servicesThatNeed returns a selector of the Services whose policy needs an input, or nil if no policy does. The keys of
// needs are names of policies.
func servicesThatNeed(input uint32, cfg *config.Config, needs map[string]uint32) func(*model.Service) bool {
	for _, n := range needs {
		if n&input != 0 {
			policies := cfg.PolicySet()
			return func(s *model.Service) bool {
				p, _ := policies.For(s) // on an error p is the policy that applies without the annotation
				return p != nil && needs[p.Name]&input != 0
			}
		}
	}
	return nil
}
