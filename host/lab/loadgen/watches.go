package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// CountWatches returns the number of the API server's watches by resource, including its own.
func CountWatches(ctx context.Context, c *testcluster.Cluster) (map[string]int, error) {
	text, err := c.Client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("get API server metrics: %w", err)
	}
	out := map[string]int{}
	for line := range bytes.Lines(text) {
		labels, value, ok := strings.Cut(strings.TrimSpace(string(line)), "} ")
		labels, one := strings.CutPrefix(labels, "apiserver_longrunning_requests{")
		if !ok || !one || !strings.Contains(labels, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("the API server's metrics: %q: %w", line, err)
		}
		_, rest, _ := strings.Cut(labels, `resource="`)
		resource, _, _ := strings.Cut(rest, `"`)
		out[resource] += int(n)
	}
	return out, nil
}

// AddedWatches returns the increase of watches by resource, for resources where there is one.
func AddedWatches(before, after map[string]int) map[string]int {
	out := map[string]int{}
	for resource, n := range after {
		if n > before[resource] {
			out[resource] = n - before[resource]
		}
	}
	return out
}
