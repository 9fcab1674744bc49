package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/model"
)

// Session affinity time-outs that the API server allows, and its default.
const (
	defaultAffinity = 10800 * time.Second
	maxAffinity     = 86400 * time.Second
)

// Service converts a Service. A nil value comes with the reason to skip it, or with SkipInvalid and problems. The
// value shares the object's label map: objects are immutable once handed over.
func Service(o *corev1.Service) (*model.Service, Skip, []Problem) {
	p := problems{object: "Service " + o.Namespace + "/" + o.Name}
	if skip := skipService(o); skip != "" {
		return nil, skip, nil
	}
	s := &model.Service{
		Name:          model.Name{Namespace: o.Namespace, Name: o.Name},
		Labels:        o.Labels,
		Policy:        o.Annotations[AnnotationPolicy],
		ClusterIPs:    p.clusterIPs(o),
		InternalLocal: p.isLocalPolicy("spec.internalTrafficPolicy", (*string)(o.Spec.InternalTrafficPolicy)),
		Affinity:      p.affinity(&o.Spec),
		Ports:         p.servicePorts(o.Spec.Ports),
	}
	if !o.CreationTimestamp.IsZero() {
		s.Created = o.CreationTimestamp.Unix()
	}
	etp := string(o.Spec.ExternalTrafficPolicy)
	// Ignored where nothing external can exist, as everywhere in Kubernetes.
	s.ExternalLocal = p.isLocalPolicy("spec.externalTrafficPolicy", &etp) && (o.Spec.Type == corev1.ServiceTypeNodePort ||
		o.Spec.Type == corev1.ServiceTypeLoadBalancer || len(o.Spec.ExternalIPs) > 0)
	s.ExternalIPs = p.externalIPs(o.Spec.ExternalIPs)
	s.LoadBalancerIPs = p.loadBalancerIPs(o.Status.LoadBalancer.Ingress)
	var open bool
	if s.SourceRanges, open = p.sourceRanges(o.Spec.LoadBalancerSourceRanges); !open {
		s.LoadBalancerIPs = nil
	}
	if o.Spec.Type == corev1.ServiceTypeLoadBalancer && s.ExternalLocal && o.Spec.HealthCheckNodePort != 0 {
		s.HealthCheckNodePort, _ = p.port("spec.healthCheckNodePort", o.Spec.HealthCheckNodePort)
	}
	if len(s.ClusterIPs) == 0 {
		return nil, SkipInvalid, p.list
	}
	return s, "", p.list
}

func skipService(o *corev1.Service) Skip {
	if skip := skipLabels(o.Labels); skip != "" {
		return skip
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return SkipExternalName
	}
	first := o.Spec.ClusterIP
	if first == "" && len(o.Spec.ClusterIPs) > 0 {
		first = o.Spec.ClusterIPs[0]
	}
	switch first {
	case corev1.ClusterIPNone:
		return SkipHeadless
	case "":
		return SkipNoClusterIP
	}
	return ""
}

// clusterIPs reads spec.clusterIPs, or spec.clusterIP of objects from before dual stack. The family is the address's
// own; spec.ipFamilies says the same and is not needed.
func (p *problems) clusterIPs(o *corev1.Service) []netip.Addr {
	list, field := o.Spec.ClusterIPs, func(i int) string { return fmt.Sprintf("spec.clusterIPs[%d]", i) }
	if len(list) == 0 {
		list, field = []string{o.Spec.ClusterIP}, func(int) string { return "spec.clusterIP" }
	}
	var out []netip.Addr
	for i, s := range list {
		a, err := parseAddr(s)
		if err == nil {
			err = checkFrontend(a)
		}
		if err != nil {
			p.add(field(i), "%w", err)
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
	for i, s := range list {
		if strings.TrimSpace(s) == "" {
			continue // the API server has let empty ones in
		}
		a, err := parseAddr(s)
		if err == nil {
			err = checkEndpoint(a) // the API server's rule for both is the same
		}
		if err != nil {
			p.add(fmt.Sprintf("spec.externalIPs[%d]", i), "%w", err)
		} else if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// loadBalancerIPs takes the ingress addresses whose packets arrive with the load balancer's own address as
// destination (KEP-1860). A host name is somebody else's to resolve.
func (p *problems) loadBalancerIPs(list []corev1.LoadBalancerIngress) []netip.Addr {
	var out []netip.Addr
	for i, in := range list {
		field := fmt.Sprintf("status.loadBalancer.ingress[%d]", i)
		if in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			if *in.IPMode != corev1.LoadBalancerIPModeProxy {
				p.add(field+".ipMode", "%q is neither VIP nor Proxy: the address is not served", *in.IPMode)
			}
			continue
		}
		if in.IP == "" {
			continue
		}
		a, err := parseAddr(in.IP)
		if err == nil {
			err = checkFrontend(a)
		}
		if err != nil {
			p.add(field+".ip", "%w", err)
		} else if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// sourceRanges reads who may use the load-balancer addresses. A /0 lifts the restriction of its family. It reports
// false when ranges were wanted and none can be read: then nobody may, rather than everybody.
func (p *problems) sourceRanges(list []string) ([]netip.Prefix, bool) {
	var out []netip.Prefix
	var read, bad int
	anyone := map[int]bool{} // by address length
	for i, s := range list {
		if strings.TrimSpace(s) == "" {
			continue
		}
		r, err := parsePrefix(s)
		if err != nil {
			p.add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "%w", err)
			bad++
			continue
		}
		read++
		if r.Bits() == 0 {
			anyone[r.Addr().BitLen()] = true
		} else if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	if bad > 0 && read == 0 {
		p.add("spec.loadBalancerSourceRanges", "no range can be read: the load-balancer addresses are not served")
		return nil, false
	}
	out = slices.DeleteFunc(out, func(r netip.Prefix) bool { return anyone[r.Addr().BitLen()] })
	if len(out) == 0 {
		out = nil
	}
	return out, true
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
		p.add(field, "%q is neither Cluster nor Local: taken as Cluster", *policy)
	}
	return false
}

func (p *problems) affinity(s *corev1.ServiceSpec) time.Duration {
	switch s.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case "", corev1.ServiceAffinityNone:
		return 0
	default:
		p.add("spec.sessionAffinity", "%q is neither None nor ClientIP: taken as None", s.SessionAffinity)
		return 0
	}
	c := s.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	d := time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	if d <= 0 || d > maxAffinity {
		p.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not between 1 and %d: taken as %d",
			*c.ClientIP.TimeoutSeconds, maxAffinity/time.Second, defaultAffinity/time.Second)
		return defaultAffinity
	}
	return d
}

func (p *problems) servicePorts(list []corev1.ServicePort) []model.ServicePort {
	if len(list) == 0 {
		p.add("spec.ports", "no port: nothing to proxy")
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

// portName holds the names of ports to what the API server lets in: they end up in rulesets, logs and metrics.
func (p *problems) portName(field, s string) bool {
	bad := strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
	if bad || len(s) > 63 {
		p.add(field, "%.100q is not a name of at most 63 lower-case letters, digits and '-'", s)
		return false
	}
	return true
}

func (p *problems) port(field string, n int32) (uint16, bool) {
	if n < 1 || n > 65535 {
		p.add(field, "%d is not between 1 and 65535", n)
		return 0, false
	}
	return uint16(n), true
}

// protocol reads a protocol; none means TCP, the API's default.
func (p *problems) protocol(field string, proto *corev1.Protocol) (model.Protocol, bool) {
	if proto == nil || *proto == "" {
		return model.TCP, true
	}
	m, ok := model.ParseProtocol(string(*proto))
	if !ok {
		p.add(field, "%q is not TCP, UDP or SCTP", *proto)
	}
	return m, ok
}
