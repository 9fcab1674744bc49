package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// LeftOut returns why a limit left out the frontend of a connection that a Service wants. The frontend of the result is that of the connection.
func (p *Planner) LeftOut(to netip.AddrPort, protocol model.Protocol) (why plan.Degradation, kind plan.Kind, found bool) {
	key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: protocol}
	nodePort := key
	if nodePort.Addr = netip.IPv4Unspecified(); to.Addr().Is6() {
		nodePort.Addr = netip.IPv6Unspecified()
	}
	onNode := slices.Contains(p.builder.plan.Global.NodePortAddrs, to.Addr())
	for name, s := range p.services {
		svc := p.cluster.Services[name]
		if len(s.omitted) == 0 || svc == nil {
			continue
		}
		svc = p.served(svc)
		at := slices.IndexFunc(svc.Ports, func(sp model.ServicePort) bool {
			wanted := addrKind(svc, to.Addr(), &kind) && sp.Port == to.Port()
			if !wanted && onNode && sp.NodePort == to.Port() {
				wanted, kind = true, plan.NodePort
			}
			return wanted && sp.Protocol == protocol
		})
		if at < 0 {
			continue
		}
		if kind == plan.NodePort {
			key = nodePort
		}
		if c := p.builder.services[name]; c != nil && slices.ContainsFunc(c.frontends, func(f *plan.Frontend) bool { return f.Key == key }) {
			continue // it is contested, not left out
		}
		why = s.omitted[0] // limits of frontends come first
		why.Frontend, why.Owner.Port, why.Owner.Protocol = key, svc.Ports[at].Name, protocol
		return why, kind, true
	}
	return why, kind, false
}

// addrKind sets the kind of an address of a Service. It returns false for addresses that the Service is not served at.
func addrKind(svc *model.Service, a netip.Addr, kind *plan.Kind) bool {
	for _, s := range addrsOf(svc) {
		if s.addr == a && s.served {
			*kind = s.kind
			return true
		}
	}
	return false
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
	Count  int               // endpoints
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

// withoutPort finds the endpoints of a Service that one of its ports does not reach, because no EndpointSlice has them with that port.
func withoutPort(svc *model.Service, list []*model.EndpointSlice) (out []WithoutPort) {
	for _, p := range svc.Ports {
		for _, family := range families {
			if !hasFamily(svc, family) {
				continue
			}
			want := model.SlicePort{Name: p.Name, Protocol: p.Protocol}
			has := func(s *model.EndpointSlice) bool {
				return slices.ContainsFunc(s.Ports, func(q model.SlicePort) bool { return q.Compare(want) == 0 && q.Port != 0 })
			}
			reached := map[netip.Addr]bool{}
			for _, s := range list {
				for i := range s.Endpoints {
					if s.Family == family && has(s) {
						reached[s.Endpoints[i].Addr] = true
					}
				}
			}
			first := len(out)
			for _, s := range list {
				if s.Family != family || has(s) {
					continue
				}
				for i := range s.Endpoints {
					e := &s.Endpoints[i]
					if reached[e.Addr] {
						continue
					}
					reached[e.Addr] = true // named once
					at := slices.IndexFunc(out[first:], func(w WithoutPort) bool { return slices.Equal(w.Has, s.Ports) })
					if at < 0 {
						at = len(out) - first
						out = append(out, WithoutPort{Port: p, Family: family, Has: s.Ports})
					}
					w := &out[first+at]
					if w.Count++; len(w.Names) < maxNamed {
						name := e.Addr.String()
						if e.Pod != "" {
							name = "Pod " + e.Pod
						}
						w.Names = append(w.Names, name)
					}
				}
			}
		}
	}
	return out[:min(len(out), maxExplained)]
}
