package reporter

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// reportLab is a cluster of some size, and one node of it.
type reportLab struct {
	*Reporter
	nodes int
	mu    sync.Mutex
	now   *v1alpha1.Report
	err   error
	begin time.Time
	at    []time.Duration // of writes, and of attempts that failed
	last  *v1alpha1.Report
}

func newReportLab(nodes int) *reportLab {
	l := &reportLab{nodes: nodes, begin: time.Now(), now: &v1alpha1.Report{Version: "1"}}
	l.Reporter = &Reporter{Writer: l, Log: slog.New(slog.DiscardHandler), Report: func(context.Context) *v1alpha1.Report {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.now
	}}
	return l
}

// CountNodes implements Writer.
func (l *reportLab) CountNodes(context.Context) (int, error) { return l.nodes, nil }

// WriteReport implements Writer.
func (l *reportLab) WriteReport(_ context.Context, r *v1alpha1.Report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Since(l.begin))
	if l.err == nil {
		l.last = r
	}
	return l.err
}

// latest returns the report that was written last, nil for none.
func (l *reportLab) latest() *v1alpha1.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// reads makes a report of a node that has read objects up to a version.
func (l *reportLab) reads(version int, failing ...v1alpha1.PolicyReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = &v1alpha1.Report{Version: "1", Observed: v1alpha1.Observed{ServicePolicies: strconv.Itoa(version)}, Policies: failing}
}

func (l *reportLab) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// since returns the attempts since a time.
func (l *reportLab) since(d time.Duration) (out []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if at > d {
			out = append(out, at-d)
		}
	}
	return out
}

// playReports runs the reporters of labs beside f.
func playReports(t *testing.T, labs []*reportLab, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	close(first)
	var wg sync.WaitGroup
	for _, l := range labs {
		wg.Go(func() { l.Run(ctx, first) })
	}
	f()
	cancel()
	wg.Wait()
}

// TestReportsOfARolloutAreSpread: over a minute at 5,000 nodes, those of the first failure over six seconds; those of three nodes
// are not.
func TestReportsOfARolloutAreSpread(t *testing.T) {
	failing := v1alpha1.PolicyReport{Namespace: "shop", Name: "web", Reason: v1alpha1.ReasonFailing}
	for _, c := range []struct {
		nodes       int
		failing     []v1alpha1.PolicyReport
		least, most time.Duration // between the first and the last write
	}{
		{5000, nil, 50 * time.Second, 62 * time.Second},
		{5000, []v1alpha1.PolicyReport{failing}, 4 * time.Second, 8 * time.Second},
		{3, nil, 0, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			labs := make([]*reportLab, 200)
			for i := range labs {
				labs[i] = newReportLab(c.nodes)
			}
			playReports(t, labs, func() {
				time.Sleep(time.Minute)
				for _, l := range labs {
					if len(l.since(0)) > 0 {
						t.Error("a node without objects writes a report")
					}
					l.reads(7, c.failing...)
				}
				time.Sleep(2 * time.Minute)
			})
			first, last, perSecond := time.Hour, time.Duration(0), map[int]int{}
			for _, l := range labs {
				at := l.since(time.Minute)
				if len(at) != 1 || l.latest().Observed.ServicePolicies != "7" {
					t.Fatalf("%d nodes: %d writes, want one", c.nodes, len(at))
				}
				first, last = min(first, at[0]), max(last, at[0])
				perSecond[int(at[0].Seconds())]++
			}
			if spread := last - first; spread < c.least || spread > c.most {
				t.Errorf("%d nodes, failing %t: writes are spread over %s, want %s to %s", c.nodes, c.failing != nil, spread, c.least, c.most)
			}
		})
	}
}

// TestReportsAreBounded: who changes all the time writes twice a minute, who does not change writes nothing, and the last state
// is written.
func TestReportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newReportLab(3)
		playReports(t, []*reportLab{l}, func() {
			for i := range 3600 {
				l.reads(i + 1)
				time.Sleep(time.Second)
			}
			if n := len(l.since(0)); n < 60 || n > 130 {
				t.Errorf("%d writes in an hour of changes", n)
			}
			time.Sleep(time.Minute)
			if last := l.latest(); last == nil || last.Observed.ServicePolicies != "3600" {
				t.Errorf("the last report is %+v", last)
			}
			time.Sleep(time.Hour)
			if n := len(l.since(time.Hour + time.Minute)); n > 0 {
				t.Errorf("%d writes in an hour without a change", n)
			}
		})
	})
}

// TestReportsAreRetried: an API server that fails is asked less and less often, one that refuses every five minutes or more
// seldom.
func TestReportsAreRetried(t *testing.T) {
	for err, most := range map[error]int{errors.New("unavailable"): 20, kube.ErrReportRefused: 13} {
		synctest.Test(t, func(t *testing.T) {
			l := newReportLab(3)
			l.fails(err)
			playReports(t, []*reportLab{l}, func() {
				l.reads(1)
				time.Sleep(time.Hour)
				if n := len(l.since(0)); n < 5 || n > most {
					t.Errorf("%v: %d attempts in an hour", err, n)
				}
				l.fails(nil)
				time.Sleep(10 * time.Minute)
				if l.latest() == nil {
					t.Errorf("%v: not written afterwards", err)
				}
			})
		})
	}
}
