package state

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
)

// Shadow is how the shadow of a Service's policy compares with what is in force.
type Shadow struct {
	Plugins []string `json:"plugins,omitempty"` // not in lists
	// Divergence is the mean share of new connections that would go to other endpoints, 0 to 1, over the pools that are compared; nil:
	// none is.
	Divergence *float64 `json:"divergence,omitempty"`
	Failing    bool     `json:"failing,omitempty"`
	Pending    bool     `json:"pending,omitempty"`
}

// PoolShadow is a Shadow for one pool.
type PoolShadow struct {
	Divergence *float64 `json:"divergence,omitempty"`
	Error      string   `json:"error,omitempty"`
	Pending    *Pending `json:"pending,omitempty"`
}

// EndpointShadow is what the shadow decides about an endpoint.
type EndpointShadow struct {
	Weight uint16  `json:"weight"`
	Share  float64 `json:"share"` // of new connections, 0 to 1
	Steps  []Step  `json:"steps"`
}

// ServiceShadow is a Shadow in a list of Services.
type ServiceShadow struct {
	Service string `json:"service"`
	Policy  string `json:"policy"`
	Shadow
}

// NewShadows converts the comparisons of Services with the shadows of their policies.
func NewShadows(list []planner.ServiceShadow) []ServiceShadow {
	out := []ServiceShadow{}
	for i := range list {
		out = append(out, ServiceShadow{list[i].Service.String(), list[i].Policy, compared(&list[i])})
	}
	return out
}

// Shadows returns the comparisons of Services with the shadows of their policies, those that diverge the most first.
func (a *Agent) Shadows(ctx context.Context) (out []ServiceShadow, err error) {
	err = a.Engine.Do(ctx, func(p *planner.Planner) { out = NewShadows(p.Shadows()) })
	return out, err
}

func compared(s *planner.ServiceShadow) Shadow {
	out := Shadow{Failing: s.Failing, Pending: s.Pending}
	if s.Compared {
		out.Divergence = &s.Divergence
	}
	return out
}

func newShadow(p *policy.Policy, s *planner.ServiceShadow) *Shadow {
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

func newPoolShadow(s *policy.Shadow, wallTime func(int64) time.Time) *PoolShadow {
	if s == nil {
		return nil
	}
	out := &PoolShadow{Pending: newPending(s.Pending, wallTime)}
	if s.Err != nil && s.Pending == nil {
		out.Error = s.Err.Error()
	}
	if s.Compared {
		out.Divergence = &s.Divergence
	}
	return out
}

func newEndpointShadow(s *policy.Shadow, i int) *EndpointShadow {
	if s == nil || s.Weights == nil {
		return nil
	}
	return &EndpointShadow{s.Weights[i], share(s.Weights[i], totalOf(s.Weights)), newSteps(s.Steps, i)}
}
