package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// Resolve returns the flow of a query in the cluster of a planner. Errors name the fields of the query with the prefix.
func Resolve(q *api.FlowQuery, prefix string, p *planner.Planner) (plan.Flow, error) {
	e, err := q.Ends(prefix)
	if err != nil {
		return plan.Flow{}, err
	}
	invalid := func(field string, err error) (plan.Flow, error) {
		return plan.Flow{}, fmt.Errorf("%s%s: %w", prefix, field, err)
	}
	from := []netip.Addr{e.From}
	if !e.From.IsValid() {
		pod := model.Name(e.Pod)
		if from = p.PodAddrs(pod); len(from) == 0 {
			return invalid("from", fmt.Errorf("Pod %s: its address is not known: no EndpointSlice names it; use its IP address", pod))
		}
	}
	if !e.To.IsValid() {
		flow, err := toService(q, p, &e, from)
		if err != nil {
			return invalid("to", err)
		}
		return flow, nil
	}
	source, ok := sameFamily(from, e.To.Addr())
	if !ok {
		return invalid("to", fmt.Errorf("%q is not of the same IP family as %s", q.To, from[0]))
	}
	protocol, _ := model.ParseProtocol(e.Protocol)
	return plan.Flow{From: source, Interface: q.Interface, To: e.To, Protocol: protocol}, nil
}

// sameFamily returns the first of the addresses that is of the family of another one.
func sameFamily(addrs []netip.Addr, as netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(as) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// toService returns the flow to the ClusterIP of a Service, in a family of the source.
func toService(q *api.FlowQuery, p *planner.Planner, e *api.Ends, from []netip.Addr) (flow plan.Flow, err error) {
	svc := p.Service(model.Name(e.Service))
	if svc == nil {
		return flow, p.NotFound(model.Name(e.Service))
	}
	var found *model.ServicePort
	var names []string
	for i := range svc.Ports {
		port := &svc.Ports[i]
		number := strconv.Itoa(int(port.Port))
		names = append(names, strings.TrimPrefix(port.Name+"="+number, "=")+"/"+port.Protocol.String())
		if q.Protocol != "" && !strings.EqualFold(q.Protocol, port.Protocol.String()) {
			continue
		}
		switch {
		case found != nil:
			if e.Port == "" {
				return flow, fmt.Errorf("Service %s: has several ports; add one of %s", e.Service, strings.Join(names, ", "))
			}
		case e.Port == "", e.Port == number, e.Port == port.Name:
			found = port
		}
	}
	if found == nil {
		return flow, fmt.Errorf("Service %s: no port %s; it has %s", e.Service, strings.Trim(e.Port+"/"+q.Protocol, "/"), strings.Join(names, ", "))
	}
	for _, a := range svc.ClusterIPs {
		if source, ok := sameFamily(from, a); ok {
			return plan.Flow{From: source, Interface: q.Interface, To: netip.AddrPortFrom(a, found.Port), Protocol: found.Protocol}, nil
		}
	}
	return flow, fmt.Errorf("Service %s: has no ClusterIP of the IP family of %s", e.Service, from[0])
}
