package state

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
)

// FlowQuery is a connection to trace. From is an IP address or a Pod, To an address and port or a Service with an optional port, by name
// or number; names without a namespace are in Namespace.
type FlowQuery struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Protocol  string `json:"protocol"` // "": that of the Service port, else TCP
	Interface string `json:"interface"`
	Namespace string `json:"-"`
}

// Check returns an error if a query is invalid whatever the cluster; errors name its fields with the prefix.
func (q *FlowQuery) Check(prefix string) error {
	_, err := q.resolve(prefix, nil)
	return err
}

// Resolve returns the flow of a query in the cluster of a planner.
func (q *FlowQuery) Resolve(prefix string, p *planner.Planner) (plan.Flow, error) {
	return q.resolve(prefix, p)
}

// resolve resolves names only if there is a planner.
func (q *FlowQuery) resolve(prefix string, p *planner.Planner) (plan.Flow, error) {
	invalid := func(field string, err error) (plan.Flow, error) {
		return plan.Flow{}, fmt.Errorf("%s%s: %w", prefix, field, err)
	}
	if q.From == "" {
		return invalid("from", errors.New("required: an IP address or a Pod"))
	}
	if q.To == "" {
		return invalid("to", errors.New("required: an IP address and a port, or a Service"))
	}
	protocol, ok := model.ParseProtocol(cmp.Or(strings.ToUpper(q.Protocol), "TCP"))
	if !ok {
		return invalid("protocol", fmt.Errorf("%q is not TCP, UDP or SCTP", q.Protocol))
	}
	var from []netip.Addr
	if pod, ok := q.name(q.From); !ok {
		addr, err := ParseIP(q.From)
		if err != nil {
			return invalid("from", err)
		}
		from = []netip.Addr{addr}
	} else if p != nil {
		if from = p.PodAddrs(pod); len(from) == 0 {
			return invalid("from", fmt.Errorf("Pod %s: its address is not known: no EndpointSlice names it; use its IP address", pod))
		}
	}
	if service, ok := q.serviceOf(q.To); ok {
		if p == nil {
			return plan.Flow{}, nil
		}
		flow, err := q.toService(p, service, from)
		if err != nil {
			return invalid("to", err)
		}
		return flow, nil
	}
	to, err := netip.ParseAddrPort(q.To)
	if err != nil {
		return invalid("to", fmt.Errorf("%q is not ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", q.To))
	}
	addr, err := ParseIP(to.Addr().String())
	if err == nil && to.Port() == 0 {
		err = fmt.Errorf("%q: port 0", q.To)
	}
	source, ok := sameFamily(from, addr)
	if err == nil && !ok && len(from) > 0 {
		err = fmt.Errorf("%q is not of the same IP family as %s", q.To, from[0])
	}
	if err != nil {
		return invalid("to", err)
	}
	return plan.Flow{From: source, Interface: q.Interface, To: netip.AddrPortFrom(addr, to.Port()), Protocol: protocol}, nil
}

// sameFamily returns the first of the addresses that is of the family of another one.
func sameFamily(addrs []netip.Addr, as netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(as) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}

// name returns the name that a text is, unless it is meant as an address.
func (q *FlowQuery) name(text string) (model.Name, bool) {
	if ns, name, ok := strings.Cut(text, "/"); ok {
		return model.Name{Namespace: ns, Name: name}, true
	}
	// A name has no colon, and one of digits only has no dot; q.Namespace is "" if names are not accepted.
	if q.Namespace == "" || strings.Contains(text, ":") || strings.Contains(text, ".") && strings.Trim(text, "0123456789.") == "" {
		return model.Name{}, false
	}
	return model.Name{Namespace: q.Namespace, Name: text}, true
}

// serviceQuery is a Service and the name or number of a port; "": its only port.
type serviceQuery struct {
	model.Name
	port string
}

// serviceOf returns the Service that a text is, unless it is meant as an address and port.
func (q *FlowQuery) serviceOf(text string) (serviceQuery, bool) {
	if _, err := netip.ParseAddrPort(text); err == nil || strings.HasPrefix(text, "[") || strings.Count(text, ":") > 1 {
		return serviceQuery{}, false
	}
	name, port, _ := strings.Cut(text, ":")
	service, ok := q.name(name)
	return serviceQuery{service, port}, ok
}

// toService returns the flow to the ClusterIP of a Service, in a family of the source.
func (q *FlowQuery) toService(p *planner.Planner, want serviceQuery, from []netip.Addr) (flow plan.Flow, err error) {
	svc := p.Service(want.Name)
	if svc == nil {
		return flow, p.NotFound(want.Name)
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
			if want.port == "" {
				return flow, fmt.Errorf("Service %s: has several ports; add one of %s", want.Name, strings.Join(names, ", "))
			}
		case want.port == "", want.port == number, want.port == port.Name:
			found = port
		}
	}
	if found == nil {
		return flow, fmt.Errorf("Service %s: no port %s; it has %s", want.Name, strings.Trim(want.port+"/"+q.Protocol, "/"), strings.Join(names, ", "))
	}
	for _, a := range svc.ClusterIPs {
		if source, ok := sameFamily(from, a); ok {
			return plan.Flow{From: source, Interface: q.Interface, To: netip.AddrPortFrom(a, found.Port), Protocol: found.Protocol}, nil
		}
	}
	return flow, fmt.Errorf("Service %s: has no ClusterIP of the IP family of %s", want.Name, from[0])
}

// ParseIP parses the address of a packet.
func ParseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q: must not have a zone", s)
	case a.IsUnspecified():
		return netip.Addr{}, fmt.Errorf("%q is the unspecified address", s)
	}
	return a.Unmap(), nil
}
