package kube

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// routes is a kind of the Gateway API.
func (c *Client) routes(kind string) resource {
	path := map[string]string{model.TCPRouteKind: "tcproutes", model.UDPRouteKind: "udproutes"}[kind]
	return resource{name: kind + "s", label: path, client: c.gateway, path: path, optional: true, retry: kindsRetry,
		consequence: "connections to Services are not split by routes; the Gateway API is not installed, or sluice's ClusterRole does not permit it"}
}

// routeKind reads the routes whose parents are Services; others have no value.
func routeKind(name string) kind[model.Route] {
	return kind[model.Route]{
		name: name, prototype: &gatewayapi.Route{}, same: equal[model.Route],
		convert: func(s *interner, object any) (*converted[model.Route], error) {
			o, err := as[gatewayapi.Route](object)
			if err != nil {
				return nil, err
			}
			v, problems := source.Route(name, o)
			return &converted[model.Route]{model.Name{Namespace: s.intern(o.Namespace), Name: o.Name}, v, problems}, nil
		},
		change: func(n model.Name, v *model.Route) model.Change {
			return model.Change{Kind: model.RouteKind, Group: name, Name: n, Route: v}
		},
	}
}

// loadRoutes reads the routes once.
func loadRoutes(ctx context.Context, c *Client, into *model.Snapshot, problems []source.Problem) ([]source.Problem, error) {
	for _, kind := range []string{model.TCPRouteKind, model.UDPRouteKind} {
		of, err := load(ctx, c.routes(kind), routeKind(kind), into, nil)
		if err != nil {
			return problems, err
		}
		of = slices.DeleteFunc(of, func(p source.Problem) bool { return apierrors.IsNotFound(p.Err) }) // nobody has to install the kinds
		problems = append(problems, of...)
	}
	return problems, nil
}
