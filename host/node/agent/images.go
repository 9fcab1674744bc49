package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

const (
	// Delay before an image is pulled again. It doubles from the minimum to the maximum, and up to a half of it is added at
	// random, so that the nodes of a cluster do not ask a registry at the same time.
	minPullRetry = time.Second
	maxPullRetry = 2 * time.Minute

	registrySlots = 4                // pulls from a registry at the same time
	minPatience   = 10 * time.Second // a pull keeps its slot for so long while others wait; it doubles with each attempt that it was not enough for
)

// pluginImages are the images of plugins and their cache.
type pluginImages interface {
	MissingImages(*config.Config) []imageref.Ref
	Pull(context.Context, *config.Config, imageref.Ref) error
}

// puller pulls the images of the active configuration that are not in the cache. Each one is retried by itself, and registries do
// not wait for each other.
type puller struct {
	images pluginImages
	config func() *config.Config
	log    *slog.Logger
	wanted chan struct{} // the configuration or a file that it names may have changed
	pulled chan struct{} // an image is in the cache, or why it is not has changed

	pulls   map[imageref.Ref]*pull
	ended   chan pullResult
	running sync.WaitGroup
	files   []fileVersion // of keys, credentials and certificates, when they were last looked at
}

// pull is the state of an image that is missing.
type pull struct {
	next     time.Time // of an attempt
	delay    time.Duration
	patience time.Duration
	problem  string                  // of the last attempt
	started  time.Time               // of the running one
	cancel   context.CancelCauseFunc // ends it; nil: it is not running
	yielding bool                    // it was cancelled for another one
	gone     bool                    // it is no longer wanted
	again    bool                    // what it was started with has changed
}

type pullResult struct {
	ref imageref.Ref
	err error
}

var errYield = errors.New("too slow: others wait for this registry; retried with more time")

func newPuller(images pluginImages, active func() *config.Config, log *slog.Logger) *puller {
	return &puller{
		images: images, config: active, log: log, wanted: make(chan struct{}, 1), pulled: make(chan struct{}, 1), pulls: map[imageref.Ref]*pull{}, ended: make(chan pullResult),
	}
}

// wake has the puller look at the active configuration again.
func (p *puller) wake() { signal(p.wanted) }

// signal sends to a channel with room for one, unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run pulls images until ctx ends. At first it waits for wake.
func (p *puller) run(ctx context.Context) {
	defer p.running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.wanted:
			p.look()
		case r := <-p.ended:
			p.end(r)
		}
		timer.Stop()
		if at := p.start(ctx); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
	}
}

// look learns which images are missing. If a file has changed, all are tried at once.
func (p *puller) look() {
	cfg := p.config()
	missing := p.images.MissingImages(cfg)
	files := []fileVersion{versionOf(cfg.PluginImages.DockerConfig), versionOf(cfg.PluginImages.CAFile)}
	for i := range cfg.Plugins {
		files = append(files, versionOf(cfg.Plugins[i].Verify.Key))
	}
	changed := p.files != nil && !slices.Equal(files, p.files)
	p.files = files
	for ref, x := range p.pulls {
		switch {
		case slices.Contains(missing, ref):
		case x.cancel == nil:
			delete(p.pulls, ref)
		default:
			x.gone = true // it keeps its slot until it has ended
			x.cancel(nil)
		}
	}
	now := time.Now()
	for _, ref := range missing {
		x := p.pulls[ref]
		if x == nil {
			x = &pull{patience: minPatience}
			p.pulls[ref] = x
		}
		if changed || x.gone || x.delay == 0 {
			x.next, x.delay, x.gone, x.again = now, minPullRetry, false, true
		}
	}
}

// start starts what is due, and returns when it is to be called again; zero: when something changes.
func (p *puller) start(ctx context.Context) (again time.Time) {
	now := time.Now()
	later := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	waiting, busy := map[string][]imageref.Ref{}, map[string][]*pull{}
	for ref, x := range p.pulls {
		switch {
		case x.cancel != nil:
			busy[ref.Registry] = append(busy[ref.Registry], x)
		case x.next.After(now):
			later(x.next)
		default:
			waiting[ref.Registry] = append(waiting[ref.Registry], ref)
		}
	}
	for registry, refs := range waiting {
		running := busy[registry]
		slices.SortFunc(refs, func(a, b imageref.Ref) int {
			return cmp.Or(p.pulls[a].next.Compare(p.pulls[b].next), cmp.Compare(a.String(), b.String()))
		})
		free := max(0, min(registrySlots-len(running), len(refs)))
		for _, ref := range refs[:free] {
			p.attempt(ctx, ref)
			running = append(running, p.pulls[ref])
		}
		slices.SortFunc(running, func(a, b *pull) int { return a.started.Compare(b.started) })
		for _, x := range running[:min(len(refs)-free, len(running))] {
			switch deadline := x.started.Add(x.patience); {
			case x.yielding:
			case deadline.After(now):
				later(deadline)
			default:
				x.patience, x.yielding = 2*x.patience, true
				x.cancel(errYield)
			}
		}
	}
	return again
}

// attempt pulls an image in the background.
func (p *puller) attempt(ctx context.Context, ref imageref.Ref) {
	x, cfg := p.pulls[ref], p.config()
	pulling, cancel := context.WithCancelCause(ctx)
	x.cancel, x.started, x.yielding, x.again = cancel, time.Now(), false, false
	p.running.Go(func() {
		defer cancel(nil)
		r := pullResult{ref, p.images.Pull(pulling, cfg, ref)}
		select {
		case p.ended <- r:
		case <-ctx.Done():
		}
	})
}

// end takes the result of an attempt.
func (p *puller) end(r pullResult) {
	x := p.pulls[r.ref]
	x.cancel = nil
	switch {
	case x.gone:
		delete(p.pulls, r.ref)
	case r.err == nil:
		p.log.Info("pulled a plugin", "image", r.ref.String())
		delete(p.pulls, r.ref)
		signal(p.pulled)
	default:
		x.next = time.Now()
		if !x.again {
			x.next = x.next.Add(x.delay + rand.N(x.delay/2))
			x.delay = min(2*x.delay, maxPullRetry)
		}
		if text := r.err.Error(); x.problem != text {
			x.problem = text
			signal(p.pulled) // the log and an Event say so
		}
	}
}

// fileVersion changes when a file does.
type fileVersion struct {
	path string
	size int64
	at   time.Time
}

func versionOf(path string) fileVersion {
	v := fileVersion{path: path}
	if info, err := os.Stat(path); path != "" && err == nil {
		v.size, v.at = info.Size(), info.ModTime()
	}
	return v
}
