package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// udpDrain parses the annotations that keep UDP flows to terminating endpoints. The one without a limit takes precedence.
func (p *problems) udpDrain(annotations map[string]string) (keep bool, limit time.Duration) {
	switch annotations[AnnotationUDPConnectionHandling] {
	case "", "Default":
	case "PreserveDuringTermination":
		keep, limit = true, maxPreserve
	default:
		p.add(annotation(AnnotationUDPConnectionHandling), "want PreserveDuringTermination, Default, or no annotation")
	}
	switch annotations[AnnotationUDPDrain] {
	case "":
	case "keep":
		keep, limit = true, 0
	default:
		p.add(annotation(AnnotationUDPDrain), "want keep, or no annotation")
	}
	return keep, limit
}

func annotation(name string) string { return "metadata.annotations[" + name + "]" }

// refused parses the annotation of a Service whose refused connections are tried again.
func (p *problems) refused(annotations map[string]string) (retry bool) {
	switch annotations[AnnotationRefused] {
	case "":
	case "retry":
		return true
	default:
		p.add(annotation(AnnotationRefused), "want retry, or no annotation")
	}
	return false
}

// clusterIPs parses spec.clusterIPs, or spec.clusterIP of objects written before dual stack. spec.ipFamilies is not
// needed: the family is that of the address.
func (p *problems) clusterIPs(o *corev1.Service) []netip.Addr {
	list, field := o.Spec.ClusterIPs, func(i int) string { return fmt.Sprintf("spec.clusterIPs[%d]", i) }
	if len(list) == 0 {
		list, field = []string{o.Spec.ClusterIP}, func(int) string { return "spec.clusterIP" }
	}
	var out []netip.Addr
	for i, s := range list {
		a, ok := p.address(field(i), s, checkFrontend)
		if !ok {
			continue
		}
		if slices.ContainsFunc(out, func(b netip.Addr) bool { return model.FamilyOf(b) == model.FamilyOf(a) }) {
			p.add(field(i), "%s: a Service has one cluster IP of each family", a)
			continue
		}
		out = append(out, a)
	}
	return out
}

func (p *problems) externalIPs(list []string) []netip.Addr {
	var out []netip.Addr
	seen := map[netip.Addr]bool{}
	for i, s := range list {
		if strings.TrimSpace(s) == "" {
			continue // older API servers accept empty strings
		}
		// The API server's rule for external IPs is that for endpoints.
		if a, ok := p.address(fmt.Sprintf("spec.externalIPs[%d]", i), s, checkEndpoint); ok && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
	}
	return out
}

// loadBalancerIPs parses the ingress addresses. Those of mode VIP, whose packets arrive with the load balancer's address as
// destination (KEP-1860), are served; those of mode Proxy are reserved. Host names are ignored.
func (p *problems) loadBalancerIPs(list []corev1.LoadBalancerIngress) (served, reserved []netip.Addr) {
	seen := map[netip.Addr]bool{} // those served
	for i, in := range list {
		field := fmt.Sprintf("status.loadBalancer.ingress[%d]", i)
		vip := in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP
		if !vip && *in.IPMode != corev1.LoadBalancerIPModeProxy {
			p.add(field+".ipMode", "%q is neither VIP nor Proxy: the address is not served", *in.IPMode)
		}
		if in.IP == "" {
			continue
		}
		a, ok := p.address(field+".ip", in.IP, checkFrontend)
		switch {
		case !ok || seen[a]:
		case vip:
			seen[a] = true
			served = append(served, a)
		default:
			reserved = append(reserved, a)
		}
	}
	return served, reserved
}

// sourceRanges parses the ranges that may use the load-balancer addresses. A /0 allows all clients of its family. It
// reports false if there are ranges and none is valid: then no client is allowed, rather than every client.
func (p *problems) sourceRanges(list []string) ([]netip.Prefix, bool) {
	var out []netip.Prefix
	var valid, invalid int
	unrestricted := map[int]bool{} // by address length in bits
	for i, s := range list {
		if strings.TrimSpace(s) == "" {
			continue
		}
		r, err := ipaddr.ParsePrefix(s)
		if err != nil {
			p.add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%w", err)
			invalid++
			continue
		}
		valid++
		if r.Bits() == 0 {
			unrestricted[r.Addr().BitLen()] = true
		} else {
			out = append(out, r)
		}
	}
	if invalid > 0 && valid == 0 {
		p.add("spec.loadBalancerSourceRanges", "no valid range: the load-balancer addresses are not served")
		return nil, false
	}
	out = slices.DeleteFunc(out, func(r netip.Prefix) bool { return unrestricted[r.Addr().BitLen()] })
	return plan.NormalizePrefixes(out), true // nil if there are none; once here, not in each round of planning
}

func (p *problems) isLocalPolicy(field string, policy *string) bool {
	if policy == nil {
		return false
	}
	switch *policy {
	case "Local":
		return true
	case "", "Cluster":
	default:
		p.add(field, "%q is neither Cluster nor Local: using Cluster", *policy)
	}
	return false
}

func (p *problems) affinity(s *corev1.ServiceSpec) time.Duration {
	switch s.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case "", corev1.ServiceAffinityNone:
		return 0
	default:
		p.add("spec.sessionAffinity", "%q is neither None nor ClientIP: using None", s.SessionAffinity)
		return 0
	}
	c := s.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	d := time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	if d <= 0 || d > maxAffinity {
		p.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not between 1 and %d: using %d",
			*c.ClientIP.TimeoutSeconds, maxAffinity/time.Second, defaultAffinity/time.Second)
		return defaultAffinity
	}
	return d
}

func (p *problems) servicePorts(list []corev1.ServicePort) []model.ServicePort {
	if len(list) == 0 {
		p.add("spec.ports", "no ports: nothing to proxy")
	}
	type number struct {
		n     uint16
		proto model.Protocol
	}
	type key struct {
		name  string
		proto model.Protocol
	}
	names, ports, nodePorts := map[key]int{}, map[number]int{}, map[number]int{}
	var out []model.ServicePort
	for i, sp := range list {
		field := fmt.Sprintf("spec.ports[%d]", i)
		proto, ok := p.protocol(field+".protocol", &sp.Protocol)
		if !ok {
			continue
		}
		port, ok := p.port(field+".port", sp.Port)
		if !ok {
			continue
		}
		if !p.portName(field+".name", sp.Name) {
			continue
		}
		if j, dup := names[key{sp.Name, proto}]; dup {
			p.add(field+".name", "%q: spec.ports[%d] has the same name and protocol; the first one is used", sp.Name, j)
			continue
		}
		if j, dup := ports[number{port, proto}]; dup {
			p.add(field+".port", "%d/%s: spec.ports[%d] has the same; the first one is used", port, proto, j)
			continue
		}
		names[key{sp.Name, proto}], ports[number{port, proto}] = i, i
		m := model.ServicePort{Name: sp.Name, Protocol: proto, Port: port}
		if sp.NodePort != 0 {
			m.NodePort, _ = p.port(field+".nodePort", sp.NodePort)
		}
		if j, dup := nodePorts[number{m.NodePort, proto}]; dup && m.NodePort != 0 {
			p.add(field+".nodePort", "%d/%s: spec.ports[%d] has the same; the first one is used", m.NodePort, proto, j)
			m.NodePort = 0
		}
		nodePorts[number{m.NodePort, proto}] = i
		out = append(out, m)
	}
	return out
}
