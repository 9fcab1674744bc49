package dir

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// Fields of the wrong type are decoded as empty. Where empty has a meaning of its own, that would be unsafe: a port
// without its name or protocol would match others, and without source ranges every client is allowed. The functions below
// also drop what depends on such a field; its error has already been reported.

func dropUnsafeServiceFields(v *corev1.Service, m *strictyaml.FieldErrors) {
	if !m.AnyDropped() {
		return
	}
	v.Labels = restoreExclusionLabels(v.Labels, m)
	for i := range v.Spec.Ports {
		if field := fmt.Sprintf("spec.ports[%d]", i); portUnsafe(field, m) {
			v.Spec.Ports[i].Port = 0
			m.MarkDropped(field + ".port")
		}
	}
	const ranges, unreadable = "spec.loadBalancerSourceRanges", "?"
	for i := range v.Spec.LoadBalancerSourceRanges {
		if m.Dropped(fmt.Sprintf("%s[%d]", ranges, i)) {
			v.Spec.LoadBalancerSourceRanges[i] = unreadable
		}
	}
	if m.Dropped(ranges) {
		v.Spec.LoadBalancerSourceRanges = []string{unreadable}
	}
}

func dropUnsafeSliceFields(v *discoveryv1.EndpointSlice, m *strictyaml.FieldErrors) {
	if !m.AnyDropped() {
		return
	}
	v.Labels = restoreExclusionLabels(v.Labels, m)
	for i := range v.Ports {
		if portUnsafe(fmt.Sprintf("ports[%d]", i), m) {
			v.Ports[i].Port = nil
		}
	}
}

//lint:ignore SA1019 older manifests contain Endpoints
func dropUnsafeEndpointsFields(v *corev1.Endpoints, m *strictyaml.FieldErrors) {
	if !m.AnyDropped() {
		return
	}
	v.Labels = restoreExclusionLabels(v.Labels, m)
	for i := range v.Subsets {
		for j := range v.Subsets[i].Ports {
			if field := fmt.Sprintf("subsets[%d].ports[%d]", i, j); portUnsafe(field, m) {
				v.Subsets[i].Ports[j].Port = 0
				m.MarkDropped(field + ".port")
			}
		}
	}
}

func portUnsafe(field string, m *strictyaml.FieldErrors) bool {
	return m.Dropped(field+".name") || m.Dropped(field+".protocol")
}

// restoreExclusionLabels restores the labels that have a meaning whatever their value.
func restoreExclusionLabels(labels map[string]string, m *strictyaml.FieldErrors) map[string]string {
	for _, k := range []string{source.LabelProxyName, source.LabelHeadless} {
		if m.Dropped("metadata.labels[" + k + "]") {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[k] = ""
		}
	}
	return labels
}
