package migrate

// formerFields returns the versions of Kubernetes since which kube-proxy does not have a field any more. It ignores them, with a
// warning in its log.
func formerFields() map[string]string {
	return map[string]string{"conntrack.max": "1.16", "resourceContainer": "1.16", "udpIdleTimeout": "1.26", "udpTimeoutMilliseconds": "1.11"}
}

// formerFlags returns the versions of Kubernetes since which kube-proxy does not have a flag any more.
func formerFlags() map[string]string {
	return map[string]string{"cleanup-ipvs": "1.21", "conntrack-max": "1.16", "proxy-port-range": "1.31", "resource-container": "1.16", "udp-timeout": "1.26"}
}
