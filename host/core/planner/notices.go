package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
)

// LeftOut returns why a limit left out the frontend of a connection that a Service wants, the first by name. The frontend of the result is that
// of the connection.
func (p *Planner) LeftOut(to netip.AddrPort, protocol model.Protocol) (why plan.Degradation, kind plan.Kind, found bool) {
	if p.counters.Limited() == 0 {
		return why, kind, false
	}
	for name, s := range p.services {
		svc := p.cluster.Services[name]
		if svc == nil || len(s.omitted) == 0 || s.omitted[0].Limit == "" || found && name.Compare(why.Owner.Service) > 0 {
			continue // limits of frontends come first
		}
		f, wanted := p.wants(p.served(svc), to, protocol)
		if !wanted {
			continue
		}
		if _, claimed := slices.BinarySearchFunc(p.claims.Wanted(name), f.Key, func(f *plan.Frontend, k plan.Key) int { return f.Key.Compare(k) }); claimed {
			continue // it is contested, not left out
		}
		why, kind, found = s.omitted[0], f.Kind, true
		why.Frontend, why.Owner = f.Key, f.Owner
	}
	return why, kind, found
}

// wants returns the key, kind and owner of the frontend of a Service that a connection is to.
func (p *Planner) wants(svc *model.Service, to netip.AddrPort, protocol model.Protocol) (f plan.Frontend, wanted bool) {
	addrs := claims.AddrsOf(svc)
	at := slices.IndexFunc(addrs, func(a claims.Addr) bool { return a.IP == to.Addr() && a.Served })
	onNode := slices.Contains(p.claims.Plan().Global.NodePortAddrs, to.Addr())
	for i := range svc.Ports {
		sp := &svc.Ports[i]
		f = plan.Frontend{Key: plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: protocol}, Owner: model.PortName{Service: svc.Name, Port: sp.Name, Protocol: protocol}}
		switch {
		case sp.Protocol != protocol:
		case at >= 0 && sp.Port == to.Port():
			f.Kind = addrs[at].Kind
			return f, true
		case onNode && sp.NodePort == to.Port():
			f.Kind, f.Key.Addr = plan.NodePort, netip.IPv4Unspecified()
			if to.Addr().Is6() {
				f.Key.Addr = netip.IPv6Unspecified()
			}
			return f, true
		}
	}
	return f, false
}

// Unrestricted returns the frontends that every source may use although the Service has loadBalancerSourceRanges. ClusterIPs are not among
// them: no proxy restricts these.
func (e *Explanation) Unrestricted() (out []*plan.Frontend) {
	if len(e.Service.SourceRanges) == 0 {
		return nil
	}
	for _, f := range e.Frontends {
		if f.SourceRanges == nil && f.Kind != plan.ClusterIP {
			out = append(out, f)
		}
	}
	return out
}

// WhyUnrestricted returns why source ranges do not apply to a frontend that Unrestricted returns.
func WhyUnrestricted(f *plan.Frontend) string {
	switch f.Kind {
	case plan.ExternalIP:
		return "loadBalancerSourceRanges do not apply to external IPs"
	case plan.NodePort:
		return "loadBalancerSourceRanges do not apply to NodePorts"
	}
	return fmt.Sprintf("loadBalancerSourceRanges have no range of %s", f.Key.Family())
}

// WithoutPort is endpoints in EndpointSlices that do not have a port of their Service.
type WithoutPort struct {
	Port   model.ServicePort
	Family model.Family
	Has    []model.SlicePort // that the slices have instead
	Count  int               // endpoints, of the first maxLooked
	Names  []string          // of the first ones: Pods, or addresses; at most maxNamed
}

// maxNamed bounds WithoutPort.Names.
const maxNamed = 10

// String names the endpoints, and says why the port does not reach them.
func (w *WithoutPort) String() string {
	names := strings.Join(w.Names, ", ")
	if more := w.Count - len(w.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	var has []string
	for _, p := range w.Has {
		if p.Name == w.Port.Name {
			return fmt.Sprintf("%s %s: not at %s: their EndpointSlices have it with protocol %s", portText(&w.Port), w.Family, names, p.Protocol)
		}
		has = append(has, fmt.Sprintf("%s/%s", nameOf(p.Name), p.Protocol))
	}
	if has == nil {
		has = []string{"none"}
	}
	if more := len(has) - maxNamed; more > 0 {
		has = append(has[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s %s: not at %s: their EndpointSlices do not have the port, but %s; a targetPort that is a name must be that of a container port of these Pods",
		portText(&w.Port), w.Family, names, strings.Join(has, ", "))
}

func portText(p *model.ServicePort) string {
	return fmt.Sprintf("%s %d/%s", nameOf(p.Name), p.Port, p.Protocol)
}

func nameOf(port string) string {
	if port == "" {
		return "(unnamed)"
	}
	return port
}

// maxLooked bounds the endpoints and ports of slices that withoutPort looks at.
const maxLooked = 200_000

// WithoutPort finds the endpoints of the Service that one of its ports does not reach, because no EndpointSlice has them with that port; at
// most maxExplained groups of them. It takes some milliseconds for a large Service; call it outside of the loop.
func (e *Explanation) WithoutPort() []WithoutPort { return withoutPort(e.Service, e.slices) }

func withoutPort(svc *model.Service, list []*model.EndpointSlice) (out []WithoutPort) {
	looked := 0
	for _, p := range svc.Ports {
		for _, family := range model.Families {
			var with, without []*model.EndpointSlice
			want := model.SlicePort{Name: p.Name, Protocol: p.Protocol}
			for _, s := range list {
				if looked += 1 + len(s.Ports); looked > maxLooked {
					return out
				}
				if s.Family != family || !svc.HasFamily(family) {
					continue
				}
				if slices.ContainsFunc(s.Ports, func(q model.SlicePort) bool { return q.Compare(want) == 0 && q.Port != 0 }) {
					with = append(with, s)
				} else if len(s.Endpoints) > 0 {
					without = append(without, s)
				}
			}
			if len(without) == 0 {
				continue
			}
			reached := map[netip.Addr]bool{}
			for _, s := range with {
				if looked += len(s.Endpoints); looked > maxLooked {
					return out
				}
				for i := range s.Endpoints {
					reached[s.Endpoints[i].Addr] = true
				}
			}
			first := len(out)
			for _, s := range without {
				if looked += len(s.Endpoints); looked > maxLooked {
					break
				}
				at := first + slices.IndexFunc(out[first:], func(w WithoutPort) bool { return slices.Equal(w.Has, s.Ports) })
				if at < first {
					if at = len(out); at == maxExplained {
						break
					}
					out = append(out, WithoutPort{Port: p, Family: family, Has: s.Ports})
				}
				out[at].add(s, reached)
			}
			out = slices.DeleteFunc(out, func(w WithoutPort) bool { return w.Count == 0 })
			if looked > maxLooked || len(out) == maxExplained {
				return out
			}
		}
	}
	return out
}

// add adds the endpoints of a slice, except those that another slice has with the port.
func (w *WithoutPort) add(s *model.EndpointSlice, reached map[netip.Addr]bool) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if reached[e.Addr] {
			continue
		}
		reached[e.Addr] = true // named once
		if w.Count++; len(w.Names) < maxNamed {
			name := e.Addr.String()
			if e.Pod != "" {
				name = "Pod " + e.Pod
			}
			w.Names = append(w.Names, name)
		}
	}
}
