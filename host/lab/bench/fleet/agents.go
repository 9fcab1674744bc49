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
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// status is the agents' response to a query.
type status struct {
	Synced         int       // agents that have programmed the cluster
	LastSynced     time.Time // when the last of them had
	Changes        int       // that all agents together have received after their initial sync
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
	e := engine.New(engine.Options{
		Source:   kube.New(kube.Options{Client: client, Node: nodeName(i), Log: log, Now: time.Now, After: time.After}),
		Backend:  fake.Open(fake.NewKernel(fake.Options{})),
		Observer: &agentObserver{totals: t},
		Log:      log, SyncPeriod: 30 * time.Second,
		Planner: planner.New(planner.Settings{
			Node: nodeName(i), MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		}, nil),
	})
	return e.Run(ctx)
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
	synced bool // read and written under the tally's lock
}

// OnEnqueue implements engine.Observer.
func (w *agentObserver) OnEnqueue(changes []model.Change, _ time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.synced {
		w.s.Changes += len(changes)
	}
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
