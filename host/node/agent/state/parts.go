package state

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Bounds of what unheld ignores: the rounding of weights, relative to the part, and absolute.
const (
	heldRatio  = 0.02
	heldAmount = 0.0005
)

// unheld names the groups of endpoints that get another part of the new connections than the plugin with the role share wants:
// they have too little capacity, or the weights are too small to say it. There are at most abi.MaxGroups.
func unheld(steps []policy.StepResult, endpoints []api.Endpoint) (out []string) {
	var wants *abi.Answer
	for i := range steps {
		if s := &steps[i]; s.Role == abi.RoleShare && s.Err == nil && len(s.Answer.Groups) > 0 {
			wants = &s.Answer
		}
	}
	if wants == nil || wants.Group != nil && len(wants.Group) != len(endpoints) {
		return nil // or an answer about other endpoints
	}
	type group struct {
		wanted, got float64
		endpoints   []string
	}
	groups, sum := make([]group, len(wants.Groups)), 0.0
	for _, part := range wants.Groups {
		sum += float64(part)
	}
	for i := range endpoints {
		g := &groups[0]
		if wants.Group != nil {
			g = &groups[wants.Group[i]]
		}
		g.got += endpoints[i].Share
		g.endpoints = append(g.endpoints, endpoints[i].Address)
	}
	for i := range groups {
		g := &groups[i]
		if g.wanted = float64(wants.Groups[i]) / sum; sum == 0 || math.Abs(g.got-g.wanted) <= max(heldRatio*g.wanted, heldAmount) {
			continue
		}
		who := "no endpoint"
		if n := len(g.endpoints); n > 0 {
			who = slices.Min(g.endpoints)
			if n > 1 {
				who += fmt.Sprintf(" and %d more", n-1)
			}
		}
		out = append(out, fmt.Sprintf("%s: wanted %.3g %%, got %.3g %%", who, 100*g.wanted, 100*g.got))
	}
	return out
}
