// Package plugins has the WebAssembly plugins of a configuration: it loads them, reloads those that have changed, and says
// what they need of the cluster and what they did.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/wasm"
)

// Set has the loaded plugins of a configuration: one instance for each plugin and settings in use. A plugin
// that cannot be loaded anew stays as it was, so that its Services keep their policy.
type Set struct {
	host *wasm.Host
	log  *slog.Logger

	mu     sync.RWMutex
	loaded map[policy.Step]*loadedPlugin
	failed map[policy.Step]error // a step in neither is still to be loaded
	// retired are out of use, but a decision that began before may still be asking them.
	retired []*loadedPlugin
	closed  map[string]metrics.PluginStats // the counts of those that are closed, by plugin
}

type loadedPlugin struct {
	*wasm.Plugin
	source string // digest of the module's bytes
}

// Open starts the plugin host of a configuration; Load loads its plugins.
func Open(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Set, error) {
	cache := cfg.PluginCacheDir
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "sluice", "plugins")
	}
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Log: log, Now: time.Now})
	if err != nil {
		return nil, err
	}
	return &Set{
		host: host, log: log,
		loaded: map[policy.Step]*loadedPlugin{}, failed: map[policy.Step]error{}, closed: map[string]metrics.PluginStats{},
	}, nil
}

// Get is what the policy chains ask; a map look-up.
func (s *Set) Get(step policy.Step) (policy.Plugin, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.loaded[step]; p != nil {
		return p, nil
	}
	if err := s.failed[step]; err != nil {
		return nil, err
	}
	return nil, policy.ErrPending
}

// Load brings the set to a configuration: what is new or has changed on disk is compiled and tried, and swapped in
// when it is good. It tells whether anything was swapped, and what could not be loaded.
func (s *Set) Load(ctx context.Context, cfg *config.Config) (changed bool, err error) {
	var errs []error
	want := map[policy.Step]bool{}
	for _, spec := range cfg.Plugins {
		steps := cfg.Steps(spec.Name)
		if len(steps) == 0 {
			continue
		}
		module, digest, readErr := readModule(spec)
		instances, reloaded := 0, false
		for _, step := range steps {
			want[step] = true
			err := readErr
			if err == nil {
				var swapped, again bool
				swapped, again, err = s.loadStep(ctx, spec, step, module, digest)
				if swapped {
					instances++
				}
				reloaded = reloaded || again
			}
			if err == nil {
				continue
			}
			err = s.fail(step, err)
			if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
				errs = append(errs, err)
			}
		}
		if instances > 0 { // one for each of its settings
			changed = true
			s.log.Info("plugin loaded", "plugin", spec.Name, "file", spec.File, "digest", digest, "settings", instances, "reloaded", reloaded)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for step, p := range s.loaded {
		if !want[step] {
			delete(s.loaded, step)
			s.retired = append(s.retired, p)
		}
	}
	return changed, errors.Join(errs...)
}

// CloseRetired closes what load took out of use. It is for a time when nobody can be asking them any more.
func (s *Set) CloseRetired() {
	s.mu.Lock()
	retired := s.retired
	s.retired = nil
	for _, p := range retired {
		addStats(s.closed, p, false)
	}
	s.mu.Unlock()
	for _, p := range retired {
		if err := p.Close(); err != nil {
			s.log.Warn("closing a plugin", "err", err)
		}
	}
}

// loadStep loads a plugin with one of its settings, and tells whether there was an older revision of it.
func (s *Set) loadStep(ctx context.Context, spec config.Plugin, step policy.Step, module []byte, digest string) (swapped, again bool, _ error) {
	s.mu.RLock()
	old := s.loaded[step]
	s.mu.RUnlock()
	if old != nil && old.source == digest {
		return false, false, nil
	}
	const pagesPerMiB = 16
	p, err := s.host.LoadWithMemoryLimit(ctx, spec.Name, module, []byte(step.Settings), uint32(spec.Limits.MemoryMiB*pagesPerMiB))
	if err != nil {
		return false, false, err
	}
	s.mu.Lock()
	s.loaded[step] = &loadedPlugin{p, digest}
	delete(s.failed, step)
	if old != nil {
		s.retired = append(s.retired, old)
	}
	s.mu.Unlock()
	return true, old != nil, nil
}

// Needs returns the abi.Need bits of a configuration's policies by name: what their loaded plugins need together.
func (s *Set) Needs(cfg *config.Config) map[string]uint32 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]uint32{}
	for _, p := range cfg.Policies {
		for _, step := range p.Steps {
			if plugin := s.loaded[step]; plugin != nil {
				out[p.Name] |= plugin.Needs()
			}
		}
	}
	return out
}

// fail notes why a step has no (new) plugin.
func (s *Set) fail(step policy.Step, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded[step] != nil {
		return fmt.Errorf("plugin %s: %w (the revision loaded before stays)", step.Plugin, err)
	}
	s.failed[step] = err // whoever asks for it says which plugin it was
	return fmt.Errorf("plugin %s: %w", step.Plugin, err)
}

// Close closes all plugins and their host.
func (s *Set) Close(ctx context.Context) {
	s.mu.Lock()
	for _, p := range s.loaded {
		s.retired = append(s.retired, p)
	}
	clear(s.loaded)
	s.mu.Unlock()
	s.CloseRetired()
	if err := s.host.Close(ctx); err != nil {
		s.log.Warn("closing the plugin host", "err", err)
	}
}
