package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// IPVSVirtualServer contains the kernel's statistics of an IPVS virtual server.
type IPVSVirtualServer struct {
	// Address is the address and port of the frontend; Pool is the group of clients that the virtual server serves: all,
	// inside or outside. If the frontend no longer exists, Address is the virtual server's own address or mark, and Pool,
	// Namespace, Service and Port are empty.
	Address, Pool            string
	Namespace, Service, Port string
	Scheduler                string
	// RealServers includes DrainingRealServers, which exist only for their connections.
	RealServers, DrainingRealServers       int
	ActiveConnections, InactiveConnections int    // now
	Connections                            uint32 // counters wrap at 2^32
	PacketsIn, PacketsOut                  uint32
	BytesIn, BytesOut                      uint64
}

// Limits on the cost of IPVS metrics.
const (
	ipvsCacheTime = 10 * time.Second // for which scrapes return the same statistics
	// MaxIPVSVirtualServers is the maximum number of virtual servers that are exported.
	MaxIPVSVirtualServers = 5000
)

var ipvsLabels = []string{"virtual_server", "pool", "namespace", "service", "port"}

// Descriptors of ipvsCollector.
var (
	descIPVSActive   = desc("ipvs_active_connections", "Number of established connections of a virtual server.", ipvsLabels...)
	descIPVSInactive = desc("ipvs_inactive_connections", "Number of connections of a virtual server that are being opened or "+
		"closed, including all UDP connections.", ipvsLabels...)
	descIPVSConns = desc("ipvs_connections_total", "Number of connections since a virtual server was created. "+
		"The kernel's counter wraps at 2^32.", ipvsLabels...)
	descIPVSPackets = desc("ipvs_packets_total", "Number of packets of a virtual server by direction: in (to real servers) or out. "+
		"The kernel's counter wraps at 2^32.", append([]string{"direction"}, ipvsLabels...)...)
	descIPVSBytes = desc("ipvs_bytes_total", "Number of bytes of a virtual server by direction: in (to real servers) or out.",
		append([]string{"direction"}, ipvsLabels...)...)
	descIPVSRealServers = desc("ipvs_real_servers", "Number of real servers of a virtual server, including draining ones.", ipvsLabels...)
	descIPVSDraining    = desc("ipvs_draining_real_servers", "Number of real servers of a virtual server that are no longer in the plan "+
		"and are kept for their connections.", ipvsLabels...)
	descIPVSScheduler = desc("ipvs_scheduler_info", "The scheduler of a virtual server. The value is always 1.",
		append([]string{"scheduler"}, ipvsLabels...)...)
	descIPVSOmitted  = desc("ipvs_omitted_virtual_servers", "Number of virtual servers that are not exported because there are more than 5000.")
	descIPVSSuccess  = desc("ipvs_read_success", "Whether the last read of the IPVS statistics succeeded (1) or not (0).")
	descIPVSDuration = desc("ipvs_read_duration_seconds", "Duration of the last read of the IPVS statistics in seconds.")
)

// ipvsCollector reads the IPVS statistics at a scrape, at most once per ipvsCacheTime.
type ipvsCollector struct {
	now  func() time.Time
	read func() (servers []IPVSVirtualServer, enabled bool, err error)

	mu       sync.Mutex
	readAt   time.Time // zero: never
	duration time.Duration
	servers  []IPVSVirtualServer
	enabled  bool
	err      error
}

// Describe implements prometheus.Collector.
func (c *ipvsCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descIPVSActive, descIPVSInactive, descIPVSConns, descIPVSPackets, descIPVSBytes,
		descIPVSRealServers, descIPVSDraining, descIPVSScheduler, descIPVSOmitted, descIPVSSuccess, descIPVSDuration} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *ipvsCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if begin := c.now(); c.readAt.IsZero() || begin.Sub(c.readAt) >= ipvsCacheTime || begin.Before(c.readAt) {
		c.servers, c.enabled, c.err = c.read()
		c.readAt = c.now()
		c.duration = c.readAt.Sub(begin)
		if !c.enabled { // calling read again is cheap
			c.readAt = time.Time{}
		}
	}
	if !c.enabled {
		return
	}
	emit := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { emit(d, prometheus.GaugeValue, v, labels...) }
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		emit(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descIPVSDuration, c.duration.Seconds())
	if c.err != nil {
		gauge(descIPVSSuccess, 0)
		return
	}
	gauge(descIPVSSuccess, 1)
	exported := c.servers[:min(len(c.servers), MaxIPVSVirtualServers)]
	gauge(descIPVSOmitted, float64(len(c.servers)-len(exported)))
	for i := range exported {
		s := &exported[i]
		labels := []string{s.Address, s.Pool, s.Namespace, s.Service, s.Port}
		with := func(first string) []string { return append([]string{first}, labels...) }
		gauge(descIPVSActive, float64(s.ActiveConnections), labels...)
		gauge(descIPVSInactive, float64(s.InactiveConnections), labels...)
		counter(descIPVSConns, uint64(s.Connections), labels...)
		counter(descIPVSPackets, uint64(s.PacketsIn), with("in")...)
		counter(descIPVSPackets, uint64(s.PacketsOut), with("out")...)
		counter(descIPVSBytes, s.BytesIn, with("in")...)
		counter(descIPVSBytes, s.BytesOut, with("out")...)
		gauge(descIPVSRealServers, float64(s.RealServers), labels...)
		gauge(descIPVSDraining, float64(s.DrainingRealServers), labels...)
		gauge(descIPVSScheduler, 1, with(s.Scheduler)...)
	}
}
