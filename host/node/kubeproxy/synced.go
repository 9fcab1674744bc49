package kubeproxy

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// syncedMetric is when kube-proxy last programmed all changes, in seconds since 1970, for each IP family; before Kubernetes 1.34
// for both at once.
const syncedMetric = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"

// Synced reports whether kube-proxy is running on this node (see Running) and answers on its default metrics address, and whether
// it has programmed the Services of all the given IP families, IPv4 and IPv6.
func Synced(ctx context.Context, families []string) (answers, synced bool, err error) {
	by, err := Running(ctx, "/proc", MetricsPort)
	if err != nil || by == "" {
		return false, false, err
	}
	times := syncTimes(ctx, fmt.Sprintf("127.0.0.1:%d", MetricsPort))
	return times != nil, allSynced(times, families), nil
}

// allSynced reports whether times has all families, or the one entry of older versions.
func allSynced(times map[string]float64, families []string) bool {
	if times[""] > 0 {
		return true
	}
	return len(times) > 0 && !slices.ContainsFunc(families, func(f string) bool { return times[f] <= 0 })
}

// syncTimes returns the values of syncedMetric by IP family, nil if nobody answers.
func syncTimes(ctx context.Context, address string) map[string]float64 {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil
	}
	resp, err := loopbackClient().Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	times := map[string]float64{}
	for lines := bufio.NewScanner(http.MaxBytesReader(nil, resp.Body, maxAnswer)); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), syncedMetric)
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, " ")
		_, family, _ := strings.Cut(labels, `ip_family="`)
		family, _, _ = strings.Cut(family, `"`)
		if times[family], err = strconv.ParseFloat(value, 64); err != nil {
			return map[string]float64{}
		}
	}
	return times
}
