package guide

import (
	"fmt"
	"path/filepath"
	"strings"
)

// services covers every kind of frontend that kube-proxy has an ipset for.
const services = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:96::10"]
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: shop}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 30999
  loadBalancerSourceRanges: [203.0.113.0/24]
  externalIPs: [198.18.0.99]
  clusterIP: 10.96.0.11
  ports: [{name: http, port: 80, nodePort: 30081}, {name: dns, port: 53, protocol: UDP, nodePort: 30053}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec:
  clusterIP: 10.96.0.12
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: signal, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.13
  externalIPs: [198.18.0.98]
  ports: [{name: sctp, port: 90, protocol: SCTP, nodePort: 30090}, {name: udp, port: 90, protocol: UDP, nodePort: 30090}]
---
apiVersion: v1
kind: Service
metadata: {name: idle, namespace: shop}
spec:
  clusterIP: 10.96.0.14
  ports: [{name: http, port: 80}]
`

// addresses are written to the status of Services, as by a cloud controller or MetalLB.
var addresses = map[string]string{
	"web":   `{"status":{"loadBalancer":{"ingress":[{"ip":"198.18.0.10"},{"ip":"fd00:1:198::10"}]}}}`,
	"local": `{"status":{"loadBalancer":{"ingress":[{"ip":"198.18.0.11"}]}}}`,
}

// slices returns the EndpointSlices of all Services except idle: every Pod, on port 8080.
func (n *node) slices() string {
	var b strings.Builder
	for service, ports := range map[string]string{
		"web": "{name: http, port: 8080}", "local": "{name: http, port: 8080}, {name: dns, port: 8080, protocol: UDP}", "sticky": "{name: http, port: 8080}",
		"signal": "{name: sctp, port: 8080, protocol: SCTP}, {name: udp, port: 8080, protocol: UDP}",
	} {
		for i, family := range []string{"IPv4", "IPv6"} {
			if family == "IPv6" && service != "web" {
				continue
			}
			fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [%[4]s]
endpoints:
`, service, strings.ToLower(family), family, ports)
			for _, p := range n.pods {
				fmt.Fprintf(&b, "- {addresses: [%q], nodeName: %s, conditions: {ready: true}}\n", p.Addrs[i], nodeName)
			}
		}
	}
	return b.String()
}

// configMap returns kube-proxy's ConfigMap as kubeadm creates it, and the configuration in it. Its conntrack timeouts and
// limit differ from the kernel's defaults.
func (n *node) configMap(kubeconfig string) (manifest, config string) {
	config = fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: %s
  qps: 0
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
configSyncPeriod: 0s
conntrack:
  maxPerCore: 1024
  min: 300000
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: [192.0.2.0/24]
  minSyncPeriod: 0s
  scheduler: lc
  strictARP: true
  syncPeriod: 0s
  tcpFinTimeout: 33s
  tcpTimeout: 22m0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ipvs
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
`, filepath.Base(kubeconfig))
	manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\ndata:\n  config.conf: |\n"
	for line := range strings.Lines(config) {
		manifest += "    " + line
	}
	return manifest, config
}
