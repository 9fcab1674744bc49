package agent

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/imageref"
)

// Delay before images are pulled again. It doubles from the minimum to the maximum, and up to a half of it is added at random, so that the nodes of a
// cluster do not ask a registry at the same time.
const (
	minPullRetry = time.Second
	maxPullRetry = 2 * time.Minute
)

// puller pulls the images of the active configuration that are not in the cache.
type puller struct {
	agent  *Agent
	wanted chan struct{} // the configuration or a file that it names may have changed
	pulled chan struct{} // an image is in the cache, or why it is not has changed

	failed map[imageref.Ref]string
	files  []fileVersion // of credentials and certificates, at the last attempt
}

func newPuller(a *Agent) *puller {
	return &puller{agent: a, wanted: make(chan struct{}, 1), pulled: make(chan struct{}, 1), failed: map[imageref.Ref]string{}}
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
	timer := time.NewTimer(0)
	if !timer.Stop() {
		<-timer.C
	}
	defer timer.Stop()
	delay := minPullRetry
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			due = true
		case <-p.wanted:
		}
		cfg := p.agent.config.Load()
		missing := p.agent.plugins.MissingImages(cfg)
		if p.isNew(cfg, missing) {
			delay, due = minPullRetry, true
		}
		switch {
		case len(missing) == 0:
			timer.Stop()
		case due:
			if p.pull(ctx, cfg, missing) {
				timer.Stop()
				delay = minPullRetry
				continue
			}
			timer.Reset(delay + rand.N(delay/2))
			delay = min(2*delay, maxPullRetry)
		}
	}
}

// isNew reports whether an attempt can have another result than the last one: for other images, or with other files.
func (p *puller) isNew(cfg *config.Config, missing []imageref.Ref) bool {
	files := []fileVersion{versionOf(cfg.PluginImages.DockerConfig), versionOf(cfg.PluginImages.CAFile)}
	for i := range cfg.Plugins {
		files = append(files, versionOf(cfg.Plugins[i].VerifyKey))
	}
	changed := p.files != nil && !slices.Equal(files, p.files)
	p.files = files
	for ref := range p.failed {
		if !slices.Contains(missing, ref) {
			delete(p.failed, ref)
		}
	}
	return changed || slices.ContainsFunc(missing, func(ref imageref.Ref) bool { _, tried := p.failed[ref]; return !tried })
}

// pull pulls images at the same time, and reports whether all are there.
func (p *puller) pull(ctx context.Context, cfg *config.Config, missing []imageref.Ref) bool {
	const parallel = 4
	errs := make([]error, len(missing))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, ref := range missing {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if errs[i] = p.agent.plugins.Pull(ctx, cfg, ref); errs[i] == nil {
				p.agent.log.Info("pulled a plugin", "image", ref.String())
				signal(p.pulled) // others may take longer
			}
		})
	}
	wg.Wait()
	all := true
	for i, ref := range missing {
		if errs[i] == nil {
			delete(p.failed, ref)
			continue
		}
		all = false
		if text := errs[i].Error(); p.failed[ref] != text {
			p.failed[ref] = text
			signal(p.pulled) // the log and an Event say so
		}
	}
	return all
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
