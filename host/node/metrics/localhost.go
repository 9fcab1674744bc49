package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// LocalhostNodePorts is the state of NodePorts on loopback addresses, see localhostproxy.Stats.
type LocalhostNodePorts struct {
	Listeners, Failing, Unsupported, Open int
	// Of IPv4 and IPv6.
	FamilyListeners                        [2]int
	FamilyFailures                         [2]uint64
	ListenFailures, Accepted, DialFailures uint64
	OverTotal, OverService, NotLoopback    uint64
	Rejected                               []LocalhostRejected
}

// LocalhostRejected counts packets to NodePorts on loopback addresses of a protocol that is not served there.
type LocalhostRejected struct {
	Family   model.Family
	Protocol model.Protocol
	Packets  uint64
}

// Descriptors of localhostCollector.
var (
	descLocalhostListeners = desc("localhost_nodeport_listeners", "Number of sockets on loopback addresses for NodePorts (nodePortAddresses: localhost), by "+
		"state: listening, or failing (the port is in use, or there are too many).", "state")
	descLocalhostFailures    = desc("localhost_nodeport_listen_failures_total", "Number of failed attempts to listen on a loopback address for a NodePort.")
	descLocalhostUnsupported = desc("localhost_nodeports_unsupported", "Number of UDP and SCTP NodePorts, which are not served on loopback addresses, while TCP ones are.")
	descLocalhostOpen        = desc("localhost_nodeport_open_connections", "Number of open connections to NodePorts on loopback addresses.")
	descLocalhostAccepted    = desc("localhost_nodeport_connections_total", "Number of connections to NodePorts on loopback addresses that were accepted.")
	descLocalhostRefused     = desc("localhost_nodeport_failed_connections_total", "Number of connections to NodePorts on loopback addresses that were reset, by reason: endpoint (it could not "+
		"be connected), total_limit, service_limit (too many are open), source (not from a loopback address).", "reason")
)

// Names of kube-proxy's metrics (KEP-6032). It has them in its mode nftables; sluice, which listens itself in both modes, in
// both.
var (
	descKubeProxyListeners = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listeners",
		"Number of sockets on loopback addresses that accept connections to NodePorts.", []string{"ip_family"}, nil)
	descKubeProxyFailures = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Number of failed attempts to listen on a loopback address for a NodePort.", []string{"ip_family"}, nil)
	descKubeProxyRejected = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Number of packets of this node to NodePorts on loopback addresses that were rejected, because NodePorts of their protocol are not served there.",
		[]string{"ip_family", "protocol"}, nil)
)

// localhostCollector reports NodePorts on loopback addresses at each scrape.
type localhostCollector struct{ read func() LocalhostNodePorts }

// Describe implements prometheus.Collector.
func (c *localhostCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLocalhostListeners, descLocalhostFailures, descLocalhostUnsupported, descLocalhostOpen, descLocalhostAccepted, descLocalhostRefused,
		descKubeProxyListeners, descKubeProxyFailures, descKubeProxyRejected} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *localhostCollector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for i, f := range families {
		gauge(descKubeProxyListeners, s.FamilyListeners[i], f.String())
		counter(descKubeProxyFailures, s.FamilyFailures[i], f.String())
	}
	for _, r := range s.Rejected {
		counter(descKubeProxyRejected, r.Packets, r.Family.String(), r.Protocol.String())
	}
	gauge(descLocalhostListeners, s.Listeners, "listening")
	gauge(descLocalhostListeners, s.Failing, "failing")
	counter(descLocalhostFailures, s.ListenFailures)
	gauge(descLocalhostUnsupported, s.Unsupported)
	gauge(descLocalhostOpen, s.Open)
	counter(descLocalhostAccepted, s.Accepted)
	counter(descLocalhostRefused, s.DialFailures, "endpoint")
	counter(descLocalhostRefused, s.OverTotal, "total_limit")
	counter(descLocalhostRefused, s.OverService, "service_limit")
	counter(descLocalhostRefused, s.NotLoopback, "source")
}
