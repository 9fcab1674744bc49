package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// IPVSVirtualServer is what the kernel counts of a virtual server of IPVS.
type IPVSVirtualServer struct {
	// Address is the frontend's address and port, and Pool the sources that it is for: all, inside or outside. Of a
	// virtual server that no frontend has any more it is its own address or mark, without a Pool and a Service.
	Address, Pool                          string
	Namespace, Service, Port               string
	Scheduler                              string
	RealServers, DrainingRealServers       int // all; those that are there for their connections only
	ActiveConnections, InactiveConnections int // connections now
	Connections                            uint32
	PacketsIn, PacketsOut                  uint32
	BytesIn, BytesOut                      uint64
}

// Bounds of what IPVS's metrics cost.
const (
	ipvsCacheTime = 10 * time.Second // scrapes within this time get the same
	// MaxIPVSVirtualServers are shown at most; of others nothing has to be read.
	MaxIPVSVirtualServers = 5000
)

var ipvsLabels = []string{"server", "pool", "namespace", "service", "port"}

// The metrics of ipvsCollector.
var (
	descIPVSActive   = desc("ipvs_active_connections", "Connections through a virtual server that are established.", ipvsLabels...)
	descIPVSInactive = desc("ipvs_inactive_connections", "Connections through a virtual server that are being opened or "+
		"closed, and all of UDP.", ipvsLabels...)
	descIPVSConns = desc("ipvs_connections_total", "Connections through a virtual server since it was made. The kernel "+
		"begins anew after 2^32, with packets too.", ipvsLabels...)
	descIPVSPackets = desc("ipvs_packets_total", "Packets through a virtual server: in (to members), out.",
		append([]string{"direction"}, ipvsLabels...)...)
	descIPVSBytes = desc("ipvs_bytes_total", "Bytes through a virtual server: in (to members), out.",
		append([]string{"direction"}, ipvsLabels...)...)
	descIPVSRealServers = desc("ipvs_members", "Members of a virtual server, those that are draining among them.", ipvsLabels...)
	descIPVSDraining    = desc("ipvs_draining_members", "Members of a virtual server that are in no plan any more, and kept for "+
		"their connections.", ipvsLabels...)
	descIPVSScheduler = desc("ipvs_scheduler_info", "The scheduler of a virtual server: always 1.",
		append([]string{"scheduler"}, ipvsLabels...)...)
	descIPVSOmitted  = desc("ipvs_servers_left_out", "Virtual servers that are not shown, as there are too many.")
	descIPVSSuccess  = desc("ipvs_read_success", "1 when IPVS could be read for these metrics, else 0.")
	descIPVSDuration = desc("ipvs_read_duration_seconds", "Time to read IPVS for these metrics, when it was last read.")
)

// ipvsCollector gives the sluice_ipvs_ metrics. The kernel is asked at a scrape, unless it was asked just before.
type ipvsCollector struct {
	now  func() time.Time
	read func() (servers []IPVSVirtualServer, wanted bool, err error)

	mu      sync.Mutex
	at      time.Time // of the last reading; zero: none
	took    time.Duration
	servers []IPVSVirtualServer
	wanted  bool
	err     error
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
	if begun := c.now(); c.at.IsZero() || begun.Sub(c.at) >= ipvsCacheTime || begun.Before(c.at) {
		c.servers, c.wanted, c.err = c.read()
		c.at = c.now()
		c.took = c.at.Sub(begun)
		if !c.wanted { // asking whether costs nothing
			c.at = time.Time{}
		}
	}
	if !c.wanted {
		return
	}
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { send(d, prometheus.GaugeValue, v, labels...) }
	total := func(d *prometheus.Desc, v uint64, labels ...string) {
		send(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descIPVSDuration, c.took.Seconds())
	if c.err != nil {
		gauge(descIPVSSuccess, 0)
		return
	}
	gauge(descIPVSSuccess, 1)
	shown := c.servers[:min(len(c.servers), MaxIPVSVirtualServers)]
	gauge(descIPVSOmitted, float64(len(c.servers)-len(shown)))
	for i := range shown {
		s := &shown[i]
		of := []string{s.Address, s.Pool, s.Namespace, s.Service, s.Port}
		with := func(first string) []string { return append([]string{first}, of...) }
		gauge(descIPVSActive, float64(s.ActiveConnections), of...)
		gauge(descIPVSInactive, float64(s.InactiveConnections), of...)
		total(descIPVSConns, uint64(s.Connections), of...)
		total(descIPVSPackets, uint64(s.PacketsIn), with("in")...)
		total(descIPVSPackets, uint64(s.PacketsOut), with("out")...)
		total(descIPVSBytes, s.BytesIn, with("in")...)
		total(descIPVSBytes, s.BytesOut, with("out")...)
		gauge(descIPVSRealServers, float64(s.RealServers), of...)
		gauge(descIPVSDraining, float64(s.DrainingRealServers), of...)
		gauge(descIPVSScheduler, 1, with(s.Scheduler)...)
	}
}
