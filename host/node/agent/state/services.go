package state

import (
	"context"
	"errors"
	"net/http"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// NewServices returns the Services of a namespace, or of all if it is "".
func NewServices(p *planner.Planner, node, namespace string) *api.Services {
	return newServices(p.Overview(namespace), node)
}

func newServices(all []planner.ServiceOverview, node string) *api.Services {
	out := &api.Services{Node: node, Services: make([]api.ServiceOverview, 0, len(all))}
	for _, o := range all {
		s := api.ServiceOverview{
			Namespace: o.Name.Namespace, Name: o.Name.Name, Policy: o.Policy, Frontends: []string{}, Endpoints: o.Endpoints, Draining: o.Draining, Omitted: o.Omitted, Failing: o.Failing, Refused: o.Refused,
		}
		for _, k := range o.Frontends {
			s.Frontends = append(s.Frontends, k.String())
		}
		out.Services = append(out.Services, s)
	}
	return out
}

// ErrNotSynced means that the cluster has not been read yet.
var ErrNotSynced = errors.New("the cluster has not been read yet")

// Services returns the Services of a namespace, or of all if it is "". Its cost follows their number.
func (a *Agent) Services(ctx context.Context, namespace string) (*api.Services, error) {
	var all []planner.ServiceOverview
	var err error
	if doErr := a.Engine.Do(ctx, func(p *planner.Planner) {
		if !p.Synced() {
			err = ErrNotSynced
			return
		}
		all = p.Overview(namespace)
	}); doErr != nil || err != nil {
		return nil, errors.Join(doErr, err)
	}
	return newServices(all, a.NodeName), nil // while the engine goes on
}

func (a *Agent) services(w http.ResponseWriter, r *http.Request) {
	x, err := a.Services(r.Context(), r.URL.Query().Get("namespace"))
	if err != nil {
		fail(w, err, http.StatusServiceUnavailable)
		return
	}
	answer(w, x)
}
