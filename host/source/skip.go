package source

import "time"

// Skip is the reason why an object is not proxied; "" if it is.
type Skip string

// Reasons to skip an object (host/RULES.md, rules 1, 2 and 4).
const (
	SkipOtherProxy   Skip = "label service.kubernetes.io/service-proxy-name assigns it to another proxy"
	SkipHeadless     Skip = "headless"
	SkipExternalName Skip = "type ExternalName is DNS only"
	SkipNoClusterIP  Skip = "no cluster IP"
	SkipNoService    Skip = "no label kubernetes.io/service-name"
	SkipFQDN         Skip = "addressType FQDN"
	SkipInvalid      Skip = "invalid"
)

// Labels that exclude Services and EndpointSlices, whatever their value. Watches select objects without them, so adding
// one arrives as a deletion.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	LabelHeadless  = "service.kubernetes.io/headless"
)

// AnnotationPolicy is the annotation of a Service that names its policy.
const AnnotationPolicy = "sluice.dev/policy"

// AnnotationSettings is the annotation of a Service that sets fields of its policy's settings.
const AnnotationSettings = "sluice.dev/settings"

// AnnotationUDPDrain is the annotation of a Service that keeps its UDP flows to endpoints that terminate.
const AnnotationUDPDrain = "sluice.dev/udp-drain"

// AnnotationRefused is the annotation of a Service whose connections are tried again when their endpoint refuses them.
const AnnotationRefused = "sluice.dev/refused-connections"

// AnnotationUDPConnectionHandling is the annotation that KEP-5989 proposes for the same.
const AnnotationUDPConnectionHandling = "service.kubernetes.io/udp-connection-handling"

// maxPreserve is for how long KEP-5989 keeps flows at most: twice the time after which the kernel forgets an idle one.
const maxPreserve = 360 * time.Second

func skipLabels(labels map[string]string) Skip {
	if _, ok := labels[LabelProxyName]; ok {
		return SkipOtherProxy
	}
	if _, ok := labels[LabelHeadless]; ok {
		return SkipHeadless
	}
	return ""
}
