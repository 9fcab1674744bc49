package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/reporter"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// status is the agents' response to a query.
type status struct {
	Synced         int       // agents that have programmed the cluster
	LastSynced     time.Time // when the last of them had
	Changes        int       // that all agents together have received after their initial sync
	Objects        int       // likewise, of sluice.dev
	Reports        int       // NodeReports that they have written
	LastReport     time.Time // when the last of them was written
	LastProgrammed time.Time // the last step of any agent
	Failed         string    // why an agent failed; "": all are running
}

func nodeName(i int) string { return fmt.Sprintf("fleet-%04d", i) }

func kubeconfig(dir string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("agent-%04d.kubeconfig", i))
}

// runAgents runs n agents, each with its own connection, source, planner and engine, but without a kernel. Their starts
// are spread over a duration. Each line of in is answered with their status; the end of in stops them.
func runAgents(n int, dir string, over time.Duration, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	kube.RedirectKlog(log)
	var tally totals
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(over * time.Duration(i) / time.Duration(n)):
			}
			if err := runAgent(ctx, i, dir, log, &tally); err != nil && ctx.Err() == nil {
				tally.fail(fmt.Errorf("agent %d: %w", i, err))
			}
		})
	}
	lines, answer := bufio.NewScanner(in), json.NewEncoder(out)
	var err error
	for err == nil && lines.Scan() {
		err = answer.Encode(tally.status())
	}
	cancel()
	wg.Wait()
	return errors.Join(err, lines.Err())
}

func runAgent(ctx context.Context, i int, dir string, log *slog.Logger, t *totals) error {
	client, err := kube.Connect(kube.Connection{Kubeconfig: kubeconfig(dir, i), Version: "bench"})
	if err != nil {
		return err
	}
	w := &agentObserver{totals: t, first: make(chan struct{})}
	e := engine.New(engine.Options{
		Source:   objectSource{kube.New(kube.Options{Client: client, Node: nodeName(i), Log: log, Now: time.Now, After: time.After}), w},
		Backend:  fake.Open(fake.NewKernel(fake.Options{})),
		Observer: w,
		Log:      log, SyncPeriod: 30 * time.Second,
		Planner: planner.New(planner.Settings{
			Node: nodeName(i), MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		}, nil),
	})
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reports := &reporter.Reporter{Report: w.report, Writer: &countedWriter{kube.ReportWriter{Client: client, Node: nodeName(i)}, t}, Log: log}
	reporting.Go(func() { reports.Run(ctx, w.first) })
	return e.Run(ctx)
}

// countedWriter counts the reports that are written.
type countedWriter struct {
	kube.ReportWriter
	totals *totals
}

// WriteReport implements reporter.Writer.
func (w *countedWriter) WriteReport(ctx context.Context, r *v1alpha1.Report) error {
	err := w.ReportWriter.WriteReport(ctx, r)
	if err == nil {
		w.totals.mu.Lock()
		defer w.totals.mu.Unlock()
		w.totals.s.Reports++
		w.totals.s.LastReport = time.Now()
	}
	return err
}

// totals accumulates the status of all agents.
type totals struct {
	mu sync.Mutex
	s  status
}

func (t *totals) status() status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}

func (t *totals) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.Failed = err.Error()
}

// agentObserver observes one agent.
type agentObserver struct {
	engine.Observers // no-op for the other methods
	*totals
	synced bool // it and the following under the tally's lock

	first    chan struct{} // closed when an object is read
	observed v1alpha1.Observed
	policies int32
}

// OnEnqueue implements engine.Observer.
func (w *agentObserver) OnEnqueue(changes []model.Change, _ time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.synced {
		w.s.Changes += len(changes)
	}
}

// objectSource takes the objects of sluice.dev out of what its source emits: they are not for the engine.
type objectSource struct {
	*kube.Source
	observer *agentObserver
}

// Run implements engine.Source.
func (s objectSource) Run(ctx context.Context, emit func([]model.Change)) error {
	return s.Source.Run(ctx, func(changes []model.Change) {
		var rest []model.Change
		for i := range changes {
			if changes[i].Kind == model.ObjectKind {
				s.observer.read(&changes[i])
			} else {
				rest = append(rest, changes[i])
			}
		}
		if len(rest) > 0 {
			emit(rest)
		}
	})
}

// read takes a note of an object that is new or has changed.
func (w *agentObserver) read(c *model.Change) {
	o, exists := c.Object.(metav1.Object)
	if !exists {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.synced {
		w.s.Objects++
	}
	if w.observed == (v1alpha1.Observed{}) {
		close(w.first)
	}
	switch c.Group {
	case v1alpha1.ServicePluginKind:
		w.observed.ServicePlugins = o.GetResourceVersion()
	case v1alpha1.ServicePolicyKind:
		w.observed.ServicePolicies = o.GetResourceVersion()
		w.policies++
	default:
		w.observed.ClusterServicePolicies = o.GetResourceVersion()
	}
}

// report returns what the agent reports: all that it has read is in force.
func (w *agentObserver) report(context.Context) *v1alpha1.Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &v1alpha1.Report{Version: "bench", Observed: w.observed, PolicyCount: w.policies,
		Plugins: []v1alpha1.PluginReport{{Name: pluginName, Digest: "sha256:" + strings.Repeat("a", 64)}}}
}

// OnApply implements engine.Observer.
func (w *agentObserver) OnApply(p *engine.ApplyResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.synced && p.Synced {
		w.synced = true
		w.s.Synced++
		w.s.LastSynced = p.At
	}
	w.s.LastProgrammed = p.At
}
