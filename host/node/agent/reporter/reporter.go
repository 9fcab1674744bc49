// Package reporter writes the NodeReport of a node when it has changed, so that the nodes of a cluster do not write at the same
// time.
package reporter

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

const (
	// reportLook is how often the reporter looks for a change.
	reportLook = time.Second
	// reportEach is how often a node may write its NodeReport in the long run; reportBurst writes are free.
	reportEach, reportBurst = 30 * time.Second, 3
	// Spread is how long, for each node of the cluster, a change waits at most: the time is random, so that the nodes of
	// any cluster write 83 reports a second in a rollout, and 5,000 nodes take a minute. The first failure waits a tenth of it.
	Spread = 12 * time.Millisecond
	// Delay before a report that could not be written is written again. It doubles from the minimum to the maximum, and up to a
	// half of it is added at random.
	minReportRetry, maxReportRetry = 5 * time.Second, 5 * time.Minute
	// countEach is how often a node that has something to write counts the Nodes of the cluster. Until it can, it takes manyNodes
	// for their number.
	countEach, manyNodes = 30 * time.Minute, 5000
)

// Writer is an API server with NodeReports, a kube.ReportWriter.
type Writer interface {
	// CountNodes returns how many Nodes the cluster has.
	CountNodes(context.Context) (int, error)
	WriteReport(context.Context, *v1alpha1.Report) error
}

// Reporter writes the report of a node when it has changed. One goroutine uses it.
type Reporter struct {
	Report func(context.Context) *v1alpha1.Report // returns the report as it is now; nil: not known
	Writer Writer
	Log    *slog.Logger

	written *v1alpha1.Report // nil: none
	due     time.Time        // when a change is written; zero: there is none
	urgent  bool             // due is that of a first failure
	tokens  float64
	refill  time.Time
	retry   time.Duration // after a failed write; 0: the last one succeeded
	problem string        // that was logged last
	nodes   int
	counted time.Time
}

// Run writes reports until ctx ends. It does nothing until first is closed: until an object is read.
func (r *Reporter) Run(ctx context.Context, first <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-first:
	}
	r.tokens, r.refill = reportBurst, time.Now()
	tick := time.NewTicker(reportLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.look(ctx, time.Now())
		}
	}
}

// look writes the report if there is a change that is due. A node that has never read an object writes none.
func (r *Reporter) look(ctx context.Context, now time.Time) {
	r.tokens, r.refill = min(reportBurst, r.tokens+now.Sub(r.refill).Seconds()/reportEach.Seconds()), now
	report := r.Report(ctx)
	switch {
	case report == nil, r.written == nil && report.Observed == v1alpha1.Observed{}:
		return
	case reflect.DeepEqual(report, r.written):
		r.due, r.urgent = time.Time{}, false
		return
	}
	urgent := fails(report) && !fails(r.written)
	if r.due.IsZero() || urgent && !r.urgent && r.retry == 0 {
		r.due, r.urgent = now.Add(r.delay(ctx, urgent, now)), urgent
	}
	if now.Before(r.due) || r.tokens < 1 {
		return
	}
	r.tokens--
	r.write(ctx, report, now)
}

// delay returns how long a change waits, so that the nodes of a cluster do not write at the same time.
func (r *Reporter) delay(ctx context.Context, urgent bool, now time.Time) time.Duration {
	if r.counted.IsZero() || now.Sub(r.counted) > countEach {
		r.counted = now
		if n, err := r.Writer.CountNodes(ctx); err == nil {
			r.nodes = max(1, n)
		} else if r.nodes == 0 {
			r.nodes = manyNodes
		}
	}
	spread := time.Duration(r.nodes) * Spread
	if urgent {
		spread /= 10
	}
	return rand.N(spread)
}

func (r *Reporter) write(ctx context.Context, report *v1alpha1.Report, now time.Time) {
	err := r.Writer.WriteReport(ctx, report)
	if err == nil {
		if r.problem != "" {
			r.Log.Info("the NodeReport is written again")
		}
		r.written, r.due, r.urgent, r.retry, r.problem = report, time.Time{}, false, 0, ""
		return
	}
	r.retry = min(max(2*r.retry, minReportRetry), maxReportRetry)
	level := slog.LevelWarn
	if errors.Is(err, kube.ErrReportRefused) { // until somebody installs the controller, with the permission to write reports
		r.retry, level = maxReportRetry, slog.LevelInfo
	}
	r.due = now.Add(r.retry + rand.N(r.retry/2))
	if text := err.Error(); text != r.problem && ctx.Err() == nil {
		r.problem = text
		r.Log.Log(ctx, level, "the NodeReport is not written: the status of policies and plugins does not count this node", "err", err)
	}
}

// fails reports whether something is not in force as it should be.
func fails(r *v1alpha1.Report) bool {
	for i := 0; r != nil && i < len(r.Plugins); i++ {
		if r.Plugins[i].Reason != "" {
			return true
		}
	}
	for i := 0; r != nil && i < len(r.Policies); i++ {
		if r.Policies[i].Reason != v1alpha1.ReasonPending {
			return true
		}
	}
	return false
}
