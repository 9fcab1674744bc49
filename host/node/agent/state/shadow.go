package state

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// NewShadows converts the comparisons of Services with the shadows of their policies.
func NewShadows(list []tally.ServiceShadow) []api.ServiceShadow {
	out := []api.ServiceShadow{}
	for i := range list {
		out = append(out, api.ServiceShadow{Service: list[i].Service.String(), Policy: list[i].Policy, Shadow: compared(&list[i])})
	}
	return out
}

// Shadows returns the comparisons of Services with the shadows of their policies, those that diverge the most first.
func (a *Agent) Shadows(ctx context.Context) (out []api.ServiceShadow, err error) {
	err = a.Engine.Do(ctx, func(p *planner.Planner) { out = NewShadows(p.Shadows()) })
	return out, err
}

func compared(s *tally.ServiceShadow) api.Shadow {
	out := api.Shadow{Failing: s.Failing, Pending: s.Pending}
	if s.Compared {
		out.Divergence = &s.Divergence
	}
	return out
}

func newShadow(p *policy.Policy, s *tally.ServiceShadow) *api.Shadow {
	if len(p.Shadow) == 0 {
		return nil
	}
	out := compared(s)
	for _, step := range p.Shadow {
		name, _ := policy.CutShadow(step.Plugin)
		out.Plugins = append(out.Plugins, name)
	}
	return &out
}

func newPoolShadow(s *policy.Shadow, wallTime func(int64) time.Time) *api.PoolShadow {
	if s == nil {
		return nil
	}
	out := &api.PoolShadow{Pending: newPending(s.Pending, wallTime)}
	if s.Err != nil && s.Pending == nil {
		out.Error = s.Err.Error()
	}
	if s.Compared {
		out.Divergence = &s.Divergence
	}
	return out
}

func newEndpointShadow(s *policy.Shadow, i int) *api.EndpointShadow {
	if s == nil || s.Weights == nil {
		return nil
	}
	return &api.EndpointShadow{Weight: s.Weights[i], Share: share(s.Weights[i], totalOf(s.Weights)), Steps: newSteps(s.Steps, i)}
}
