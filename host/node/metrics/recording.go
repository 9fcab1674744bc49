package metrics

import "github.com/prometheus/client_golang/prometheus"

// Recording is the state of the recording of `sluice run --record`.
type Recording struct {
	Bytes   int64
	Dropped uint64
	Failed  bool
}

// Descriptors of recordingCollector.
var (
	descRecordedBytes     = desc("recording_bytes_total", "Number of bytes written to the recording, compressed.")
	descRecordingDropped  = desc("recording_dropped_total", "Number of changes of the cluster and readings of connections that were not recorded because the writer was late. The recording goes on with the whole state.")
	descRecordingUnfailed = desc("recording_active", "Whether what the node sees is recorded (1), or the recording has ended because of an error (0).")
)

// recordingCollector reports the state of the recording at each scrape, if there is one.
type recordingCollector struct{ read func() *Recording }

// Describe implements prometheus.Collector.
func (c *recordingCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRecordedBytes, descRecordingDropped, descRecordingUnfailed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *recordingCollector) Collect(out chan<- prometheus.Metric) {
	r := c.read()
	if r == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(descRecordedBytes, prometheus.CounterValue, float64(r.Bytes))
	out <- prometheus.MustNewConstMetric(descRecordingDropped, prometheus.CounterValue, float64(r.Dropped))
	out <- prometheus.MustNewConstMetric(descRecordingUnfailed, prometheus.GaugeValue, oneIf(!r.Failed))
}
