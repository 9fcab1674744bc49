package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// routes are the routes of the cluster.
type routes struct {
	byParent map[model.Name][]*model.Route // the oldest first
	parents  map[model.Name][]model.Name   // by backend, with repetitions
}

func newRoutes(c *model.Snapshot) routes {
	x := routes{map[model.Name][]*model.Route{}, map[model.Name][]model.Name{}}
	for _, r := range slices.SortedFunc(maps.Values(c.Routes), (*model.Route).Compare) {
		parents, backends := r.Services()
		for _, p := range parents {
			x.byParent[p] = append(x.byParent[p], r)
		}
		for _, b := range backends {
			x.parents[b] = append(x.parents[b], parents...)
		}
	}
	return x
}

// unitsOf divides the Services of the cluster into those that routes connect, which are simulated together. Units and their
// Services are sorted.
func (x *routes) unitsOf(c *model.Snapshot) (units [][]model.Name) {
	connected := map[model.Name][]model.Name{}
	for backend, parents := range x.parents {
		for _, p := range parents {
			connected[p], connected[backend] = append(connected[p], backend), append(connected[backend], p)
		}
	}
	seen := map[model.Name]bool{}
	for _, first := range slices.SortedFunc(maps.Keys(c.Services), model.Name.Compare) {
		if seen[first] {
			continue
		}
		seen[first] = true
		unit := []model.Name{first}
		for i := 0; i < len(unit); i++ { // also of those that are added meanwhile
			for _, name := range connected[unit[i]] {
				if !seen[name] && c.Services[name] != nil {
					seen[name] = true
					unit = append(unit, name)
				}
			}
		}
		slices.SortFunc(unit, model.Name.Compare)
		units = append(units, unit)
	}
	return units
}

// isLocal reports whether a Service that is split over a backend has connections for endpoints on the node only.
func (x *routes) isLocal(c *model.Snapshot, backend model.Name) bool {
	return slices.ContainsFunc(x.parents[backend], func(name model.Name) bool {
		svc := c.Services[name]
		return svc != nil && (svc.InternalLocal || svc.ExternalLocal)
	})
}

// portsBehind returns the Service ports whose endpoints get connections to a port: itself, or the backends of its route.
func (x *routes) portsBehind(c *model.Snapshot, svc *model.Service, port *model.ServicePort) (out []model.PortName) {
	r := model.FirstRoute(x.byParent[svc.Name], svc, port)
	if r == nil {
		return []model.PortName{{Service: svc.Name, Port: port.Name, Protocol: port.Protocol}}
	}
	for i := range r.Backends {
		b := &r.Backends[i]
		of := c.Services[model.Name{Namespace: svc.Name.Namespace, Name: b.Service}]
		if p, _, _ := r.Resolve(b, of); p != nil && b.Weight > 0 {
			out = append(out, model.PortName{Service: of.Name, Port: p.Name, Protocol: p.Protocol})
		}
	}
	return out
}

// routeVersion is a route from a time on.
type routeVersion struct {
	at    time.Duration
	route *model.Route
}

// routesNamed returns the routes of both kinds with a name, as they are at the beginning.
func (w *world) routesNamed(text string) (out []*model.Route) {
	namespace, name, _ := strings.Cut(text, "/")
	for _, kind := range []string{model.TCPRouteKind, model.UDPRouteKind} {
		if r := w.cluster.Routes[model.ObjectName{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}}]; r != nil {
			out = append(out, r)
		}
	}
	return out
}

// versionsOfRoute returns a route over time; nil: none.
func (w *world) versionsOfRoute(r *model.Route) []routeVersion {
	if r == nil {
		return nil
	}
	if v := w.routes[r.Name]; v != nil {
		return v
	}
	return []routeVersion{{-settle, r}}
}

// routeAt returns the route of a port that has one.
func (p *servicePort) routeAt(t time.Duration) *model.Route {
	return p.routes[at(p.routes, t, func(v routeVersion) time.Duration { return v.at })].route
}

// BackendResult is a backend of a route.
type BackendResult struct {
	Service string    `json:"service"` // NAMESPACE/NAME
	Port    uint16    `json:"port"`    // 0: the route names none
	Shares  []float64 `json:"shares"`  // of the new connections at each of Run.Series, those included that are refused
}

// Label returns the name of the backend with its port.
func (b *BackendResult) Label() string {
	if b.Port == 0 {
		return b.Service
	}
	return fmt.Sprintf("%s:%d", b.Service, b.Port)
}

// addBackends adds how the route of the port splits its connections.
func (l *portLoad) addBackends(out *ServiceResult) {
	if l.port.routes == nil {
		return
	}
	r, n := l.port.routes[0].route, len(l.port.parts)
	out.Route = r.Name.Kind + " " + r.Name.Name.String()
	for i := range r.Backends {
		b := &r.Backends[i]
		result := BackendResult{Service: b.Service, Port: b.Port}
		if !strings.Contains(b.Service, "/") {
			result.Service = model.Name{Namespace: r.Name.Name.Namespace, Name: b.Service}.String()
		}
		for s, demand := range l.demand {
			result.Shares = append(result.Shares, round(ratio(l.held[s*n+i], demand)))
		}
		out.Backends = append(out.Backends, result)
	}
}

const weightVerb = "weight"

// weight changes the weight of a backend, of all routes with a name.
func (t *timeline) weight(s *scenario.Statement) error {
	routes := t.world.routesNamed(s.Args[0])
	if len(routes) == 0 {
		var names []string
		for name := range t.cluster.Routes {
			names = append(names, name.Name.String())
		}
		slices.Sort(names)
		return fmt.Errorf("no TCPRoute or UDPRoute %q with a Service as a parent%s", s.Args[0], spelling.DidYouMean(s.Args[0], names))
	}
	weight, err := strconv.ParseUint(s.Args[2], 10, 32)
	if err != nil || weight > model.MaxRouteWeight {
		return fmt.Errorf("%q: want a weight from 0 to %d", s.Args[2], model.MaxRouteWeight)
	}
	var names []string
	found := false
	for _, r := range routes {
		versions := t.world.versionsOfRoute(r)
		now := *versions[len(versions)-1].route
		now.Backends = slices.Clone(now.Backends)
		for i := range now.Backends {
			b := &now.Backends[i]
			if names = append(names, b.Service); s.Args[1] == b.Service || s.Args[1] == fmt.Sprintf("%s:%d", b.Service, b.Port) {
				b.Weight, found = uint32(weight), true
			}
		}
		t.world.routes[r.Name] = append(versions, routeVersion{t.clock.Now(), &now})
	}
	if !found {
		return fmt.Errorf("route %s has no backend %q%s", s.Args[0], s.Args[1], spelling.DidYouMean(s.Args[1], names))
	}
	return nil
}
