package dir

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// node is a manifest of a Node with a zone.
func node(name, zone string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}\n---\n", name, zone)
}

// fixture is a running source of a directory and what it has emitted.
type fixture struct {
	t     *testing.T
	root  string
	mu    sync.Mutex
	snap  *model.Snapshot
	calls [][]model.Change
	log   bytes.Buffer
	wake  chan struct{}
}

// start runs a source until the test ends, and waits for its initial state.
func start(t *testing.T, root string, opt Options) *fixture {
	t.Helper()
	r := &fixture{t: t, root: root, snap: model.NewSnapshot(), wake: make(chan struct{}, 1)}
	opt.Now = time.Now
	opt.Log = slog.New(slog.NewTextHandler(&lockedWriter{r: r}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- New(root, opt).Run(ctx, func(changes []model.Change) {
			r.mu.Lock()
			r.calls = append(r.calls, changes)
			for _, c := range changes {
				r.snap.Apply(c)
			}
			r.mu.Unlock()
			r.notify()
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	r.waitFor("synced", func() bool { return r.snap.Synced })
	return r
}

// lockedWriter writes the log under the fixture's lock.
type lockedWriter struct{ r *fixture }

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.notify()
	return l.r.log.Write(b)
}

func (r *fixture) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// waitFor waits for a condition over what was emitted and logged.
func (r *fixture) waitFor(what string, ok func() bool) {
	r.t.Helper()
	late := time.After(time.Minute)
	for {
		r.mu.Lock()
		now := ok()
		r.mu.Unlock()
		if now {
			return
		}
		select {
		case <-r.wake:
		case <-late:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s: not seen; nodes: %s\nlog:\n%s", what, r.zones(), r.log.String())
		}
	}
}

// zones returns the Nodes as name=zone.
func (r *fixture) zones() string {
	var out []string
	for _, n := range r.snap.Nodes {
		out = append(out, n.Name+"="+n.Zone)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *fixture) waitForZones(want string) {
	r.t.Helper()
	r.waitFor(want, func() bool { return r.zones() == want })
}

func (r *fixture) waitForLog(text string) {
	r.t.Helper()
	r.waitFor("log "+text, func() bool { return strings.Contains(r.log.String(), text) })
}

func (r *fixture) write(name, text string) {
	r.t.Helper()
	write(r.t, filepath.Join(r.root, name), text)
}

func (r *fixture) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// impatient looks for what gives no events as often as for what does.
var impatient = Options{After: func(d time.Duration) <-chan time.Time { return time.After(min(d, settle)) }}

// pausedOptions has no scans from the first state until end is called.
func pausedOptions() (_ Options, end func()) {
	over := make(chan time.Time)
	return Options{After: func(d time.Duration) <-chan time.Time {
		select {
		case <-over:
			return time.After(d)
		default:
			return over
		}
	}}, func() { close(over) }
}

// scanTwice reads a directory twice, as what is missing is removed at the second time, and returns all changes.
func scanTwice(t *testing.T, d *directory) (changes []model.Change, problems []source.Problem) {
	t.Helper()
	for range 2 {
		var some []model.Change
		some, problems, _ = scanOnce(t, d)
		changes = append(changes, some...)
	}
	return changes, problems
}

func scanOnce(t *testing.T, d *directory) (changes []model.Change, problems []source.Problem, again bool) {
	t.Helper()
	if _, _, err := d.scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d.merge()
}
