package source

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Session affinity timeout: the API server's default and limit.
const (
	defaultAffinity = 10800 * time.Second
	maxAffinity     = 86400 * time.Second
)

// Service converts a Service. A nil value comes with the reason to skip it; for SkipInvalid, see the problems. The value
// shares the object's label map, so the object must not be modified afterwards.
func Service(o *corev1.Service) (*model.Service, Skip, []Problem) {
	p := problems{object: "Service " + o.Namespace + "/" + o.Name}
	if skip := SkipService(o); skip != "" {
		return nil, skip, nil
	}
	s := &model.Service{
		Name:          model.Name{Namespace: o.Namespace, Name: o.Name},
		Labels:        o.Labels,
		Annotations:   model.PackAnnotations(o.Annotations, ownAnnotation),
		Policy:        policyName(o.Annotations[AnnotationPolicy]),
		Selector:      labelSelector(o.Spec.Selector),
		Settings:      settings(o.Annotations[AnnotationSettings]),
		ClusterIPs:    p.clusterIPs(o),
		InternalLocal: p.isLocalPolicy("spec.internalTrafficPolicy", (*string)(o.Spec.InternalTrafficPolicy)),
		Affinity:      p.affinity(&o.Spec),
		Ports:         p.servicePorts(o.Spec.Ports),
	}
	s.KeepUDP, s.MaxKeepUDP = p.udpDrain(o.Annotations)
	s.RetryRefused = p.refused(o.Annotations)
	if !o.CreationTimestamp.IsZero() {
		s.Created = o.CreationTimestamp.Unix()
	}
	etp := string(o.Spec.ExternalTrafficPolicy)
	// Ignored without external addresses, as in kube-proxy.
	s.ExternalLocal = p.isLocalPolicy("spec.externalTrafficPolicy", &etp) && (o.Spec.Type == corev1.ServiceTypeNodePort ||
		o.Spec.Type == corev1.ServiceTypeLoadBalancer || len(o.Spec.ExternalIPs) > 0)
	s.ExternalIPs = p.externalIPs(o.Spec.ExternalIPs)
	s.LoadBalancerIPs, s.ReservedIPs = p.loadBalancerIPs(o.Status.LoadBalancer.Ingress)
	var valid bool
	if s.SourceRanges, valid = p.sourceRanges(o.Spec.LoadBalancerSourceRanges); !valid {
		s.LoadBalancerIPs, s.ReservedIPs = nil, append(s.ReservedIPs, s.LoadBalancerIPs...)
	}
	if o.Spec.Type == corev1.ServiceTypeLoadBalancer && s.ExternalLocal && o.Spec.HealthCheckNodePort != 0 {
		s.HealthCheckNodePort, _ = p.port("spec.healthCheckNodePort", o.Spec.HealthCheckNodePort)
	}
	if len(s.ClusterIPs) == 0 {
		return nil, SkipInvalid, p.all()
	}
	return s, "", p.all()
}

// settings bounds the annotation. Of one that is too long one byte too many is left: no policy accepts it, and the last good
// settings stay in force.
func settings(text string) string {
	if len(text) > model.MaxSettings {
		return strings.Clone(text[:model.MaxSettings+1])
	}
	return text
}

// maxPolicyName is the maximum length of the name of a policy in bytes. One byte more is kept of a longer text, so that it names
// none.
const maxPolicyName = 253

func policyName(text string) string {
	if len(text) > maxPolicyName {
		return strings.Clone(text[:maxPolicyName+1])
	}
	return text
}

// SkipService returns why a Service is not proxied; "": it is.
func SkipService(o *corev1.Service) Skip {
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

// ownAnnotation reports whether an annotation is for sluice itself, or for kubectl.
func ownAnnotation(key string) bool {
	return key == AnnotationPolicy || key == AnnotationSettings || key == AnnotationUDPDrain || key == AnnotationUDPConnectionHandling || key == AnnotationRefused ||
		key == corev1.LastAppliedConfigAnnotation
}

// labelSelector returns a Service's selector as a label selector, sorted by key.
func labelSelector(selector map[string]string) string {
	if len(selector) == 0 {
		return ""
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(key + "=" + selector[key])
	}
	return b.String()
}
