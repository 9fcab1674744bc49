package state

import (
	"context"
	"errors"
	"net/http"

	"github.com/sluice-proxy/sluice/host/planner"
)

// Services are the Services that a node serves.
type Services struct {
	Node     string            `json:"node"`
	Services []ServiceOverview `json:"services"` // sorted by namespace and name
}

// ServiceOverview is a Service in a few numbers.
type ServiceOverview struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Policy    string   `json:"policy,omitempty"`
	Frontends []string `json:"frontends"` // ClusterIPs first
	Endpoints int      `json:"endpoints"` // with weight, in any frontend
	Draining  int      `json:"draining"`  // endpoints
	Omitted   int      `json:"omitted"`   // frontends, endpoints and source ranges that limits or conflicts leave out
	Failing   bool     `json:"failing"`   // its policy
	Refused   bool     `json:"refused"`   // an annotation that chooses its policy or sets settings
}

// NewServices returns the Services of a namespace, or of all if it is "".
func NewServices(p *planner.Planner, node, namespace string) *Services {
	return newServices(p.Overview(namespace), node)
}

func newServices(all []planner.ServiceOverview, node string) *Services {
	out := &Services{Node: node, Services: make([]ServiceOverview, 0, len(all))}
	for _, o := range all {
		s := ServiceOverview{
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
func (a *Agent) Services(ctx context.Context, namespace string) (*Services, error) {
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
