package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// native adds a native histogram to one with buckets. Only a scrape in protobuf format has it, as Prometheus asks for if it is to
// store native histograms. Neighboring buckets differ by a tenth; if there are more than 160, they become wider, at most once an
// hour.
func native(o prometheus.HistogramOpts) prometheus.HistogramOpts {
	o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber, o.NativeHistogramMinResetDuration = 1.1, 160, time.Hour
	return o
}
