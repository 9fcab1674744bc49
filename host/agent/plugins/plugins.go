// Package plugins loads the WebAssembly plugins of a configuration, reloads those whose files have changed, and reports the
// inputs that they need and their statistics.
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
	"github.com/sluice-proxy/sluice/sdk/abi"
)

var errLoading = fmt.Errorf("%w: it is being loaded", policy.ErrPending)

// Set is the loaded plugins of a configuration: one instance for each combination of plugin and settings. If a new revision
// cannot be loaded, the previous one stays, and its Services keep their policy. Its methods may be called concurrently.
type Set struct {
	host *wasm.Host
	log  *slog.Logger

	mu     sync.RWMutex
	loaded map[policy.Step]*loadedPlugin
	failed map[policy.Step]error // a step in neither map is not loaded yet
	// retired are no longer in use, but a decision that has already started may still call them.
	retired []*loadedPlugin
	closed  map[string]metrics.PluginStats // of closed instances, by plugin
}

type loadedPlugin struct {
	*wasm.Plugin
	source  string // digest of the module file
	options wasm.LoadOptions
}

// Decide implements policy.Plugin. A call that was queued when a new revision replaced the plugin has to be repeated.
func (p *loadedPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	err := p.Plugin.Decide(req, resp)
	if errors.Is(err, wasm.ErrClosed) {
		return fmt.Errorf("%w: a new revision has replaced it", policy.ErrPending)
	}
	return err
}

// Open returns an empty set; Load loads the plugins. Compiled modules are cached in pluginCacheDir. compiler is the command
// line of the processes that compile them; nil: this process does.
func Open(ctx context.Context, cfg *config.Config, compiler []string, log *slog.Logger) (*Set, error) {
	cache := cfg.PluginCacheDir
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "sluice", "plugins")
	}
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Compiler: compiler, Memory: int64(cfg.PluginLimits.MemoryMiB) << 20, Log: log, Now: time.Now})
	if err != nil {
		return nil, err
	}
	return &Set{
		host: host, log: log,
		loaded: map[policy.Step]*loadedPlugin{}, failed: map[policy.Step]error{}, closed: map[string]metrics.PluginStats{},
	}, nil
}

// Get returns the plugin for a step of a policy. It is called for every decision, and costs a map lookup.
func (s *Set) Get(step policy.Step) (policy.Plugin, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.loaded[step]; p != nil {
		return p, nil
	}
	if err := s.failed[step]; err != nil {
		return nil, err
	}
	return nil, errLoading
}

// maxLoads is the maximum number of plugins that are loaded at the same time.
const maxLoads = 4

// Load updates the set to a configuration: plugins that are new or whose files have changed are compiled and tested, and
// replace the previous revision if that succeeds. loaded, if not nil, is called as soon as that is done for a plugin, by several
// goroutines: a module that takes long to compile delays no other one. changed reports whether any plugin was replaced; err joins
// the errors of those that failed.
func (s *Set) Load(ctx context.Context, cfg *config.Config, loaded func()) (changed bool, err error) {
	wanted := map[policy.Step]bool{}
	errs, swapped := make([]error, len(cfg.Plugins)), make([]bool, len(cfg.Plugins))
	slots := make(chan struct{}, maxLoads)
	var wg sync.WaitGroup
	for i, spec := range cfg.Plugins {
		steps := cfg.Steps(spec.Name)
		for _, step := range steps {
			wanted[step] = true
		}
		if len(steps) == 0 {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if swapped[i], errs[i] = s.loadPlugin(ctx, spec, steps); swapped[i] && loaded != nil {
				loaded()
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for step, p := range s.loaded {
		if !wanted[step] {
			delete(s.loaded, step)
			s.retired = append(s.retired, p)
		}
	}
	return slices.Contains(swapped, true), errors.Join(errs...)
}

// loadPlugin loads the instances of a plugin, one for each combination with settings, unless its file has not changed.
func (s *Set) loadPlugin(ctx context.Context, spec config.Plugin, steps []policy.Step) (changed bool, err error) {
	var errs []error
	module, digest, readErr := readModule(spec)
	instances, reloaded := 0, false
	for _, step := range steps {
		err := readErr
		if err == nil {
			var swapped, replaced bool
			swapped, replaced, err = s.loadStep(ctx, spec, step, module, digest)
			if swapped {
				instances++
			}
			reloaded = reloaded || replaced
		}
		if err == nil {
			continue
		}
		err = s.fail(step, err)
		if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	if instances > 0 {
		s.log.Info("loaded plugin", "plugin", spec.Name, "file", spec.File, "digest", digest, "instances", instances, "reloaded", reloaded)
	}
	return instances > 0, errors.Join(errs...)
}

// CloseRetired closes the plugins that Load has replaced. Call it when no decision can use them any more.
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
			s.log.Warn("closing a plugin failed", "err", err)
		}
	}
}

// loadStep loads a plugin with the settings of a step. swapped reports whether it was loaded, reloaded whether it replaced a
// previous revision.
func (s *Set) loadStep(ctx context.Context, spec config.Plugin, step policy.Step, module []byte, digest string) (swapped, reloaded bool, _ error) {
	s.mu.RLock()
	old := s.loaded[step]
	s.mu.RUnlock()
	options := loadOptions(spec)
	if old != nil && old.source == digest && old.options == options {
		return false, false, nil
	}
	p, err := s.host.LoadWith(ctx, spec.Name, module, []byte(step.Settings), options)
	if err != nil {
		return false, false, err
	}
	s.mu.Lock()
	s.loaded[step] = &loadedPlugin{p, digest, options}
	delete(s.failed, step)
	if old != nil {
		s.retired = append(s.retired, old)
	}
	s.mu.Unlock()
	return true, old != nil, nil
}

func loadOptions(spec config.Plugin) wasm.LoadOptions {
	const pagesPerMiB = 16
	return wasm.LoadOptions{
		MemoryPages: uint32(spec.Limits.MemoryMiB * pagesPerMiB), PerNamespace: spec.Isolation == config.IsolateNamespace,
		Instances: spec.Limits.Instances, RepeatOneIn: spec.RepeatOneIn,
	}
}

// fail records why a step has no plugin, or no new revision of it.
func (s *Set) fail(step policy.Step, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded[step] != nil {
		return fmt.Errorf("plugin %s: %w (the previous revision stays in use)", step.Plugin, err)
	}
	s.failed[step] = err // without the name of the plugin, which the caller of Get adds
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
		s.log.Warn("closing the plugin host failed", "err", err)
	}
}
