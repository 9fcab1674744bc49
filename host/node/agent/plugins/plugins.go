// Package plugins loads the WebAssembly plugins of a configuration, reloads those whose files have changed, and reports the
// inputs that they need and their statistics.
package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

var errLoading = fmt.Errorf("%w: it is being loaded", policy.ErrPending)

// Set is the loaded plugins of a configuration: one for each module, whatever its settings. If a new revision cannot be loaded,
// the previous one stays, and its Services keep their policy. Its methods may be called concurrently.
type Set struct {
	host   *wasm.Host
	modes  dataplane.Modes
	log    *slog.Logger
	images *images

	patience time.Duration // see LoadInBackground; 0: without end
	changed  func()

	mu     sync.RWMutex
	loaded map[string]*loadedPlugin // by name
	failed map[string]error         // a plugin in neither map is not loaded yet
	// problems are of the plugins whose last Load has failed, whether or not a previous revision is loaded.
	problems map[string]problem
	// retired are no longer in use, but a decision that has already started may still call them.
	retired []*loadedPlugin
	closing sync.WaitGroup   // of retired ones
	loads   map[string]*load // that go on, by name
	loading sync.WaitGroup   // of them

	closed map[string]metrics.PluginStats // of closed plugins, by name
}

type loadedPlugin struct {
	*wasm.Plugin
	source  string // digest of the module file
	image   string // that it was read from, by digest; "": a file
	options wasm.LoadOptions

	mu      sync.Mutex
	checked map[string]error // by settings of the configuration: nil, or why the plugin is not called with them
}

// Decide implements policy.Plugin. A call that was queued when a new revision replaced the plugin has to be repeated.
func (p *loadedPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	if err := p.refused(req); err != nil {
		return err
	}
	return replaced(p.Plugin.Decide(req, resp))
}

// DecideAll implements policy.Batcher.
func (p *loadedPlugin) DecideAll(calls []*policy.Call) {
	asked := make([]*policy.Call, 0, len(calls))
	for _, c := range calls {
		if c.Err = p.refused(&c.Request); c.Err == nil {
			asked = append(asked, c)
		}
	}
	p.Plugin.DecideAll(asked)
	for _, c := range asked {
		c.Err = replaced(c.Err)
	}
}

// refused returns why the plugin is not called with the settings of a request.
func (p *loadedPlugin) refused(req *abi.Request) error {
	if req.Settings.Own {
		return nil
	}
	err, ok := p.verdict(req.Settings.Text)
	if !ok {
		return errLoading // a new configuration is being loaded
	}
	return err
}

func replaced(err error) error {
	if errors.Is(err, wasm.ErrClosed) {
		return fmt.Errorf("%w: a new revision has replaced it", policy.ErrPending)
	}
	return err
}

// UserCacheDir returns the folder of compiled plugins in the user's cache directory, or "" if there is none.
func UserCacheDir() string {
	user, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(user, "sluice", "plugins")
}

// Options of Open.
type Options struct {
	Modes    dataplane.Modes // nil: all
	Compiler []string        // command line of the processes that compile modules; nil: this process does
	Process  []string        // command line of the processes in which plugins run; nil: in this process
	// Precompiled has code of modules, such as the bundled ones.
	Precompiled wasm.Precompiled
	Offline     bool // for a command that answers for no node: see wasm.OfflineLimits
	Log         *slog.Logger
}

// Open returns an empty set; Load loads the plugins. Compiled modules are cached in pluginCacheDir.
func Open(ctx context.Context, cfg *config.Config, opts Options) (*Set, error) {
	cache := cfg.PluginCacheDir
	if cache == "" {
		cache = UserCacheDir()
	}
	if cache != "" {
		var err error
		if cache, err = filepath.Abs(cache); err != nil { // the processes that compile run elsewhere
			return nil, fmt.Errorf("pluginCacheDir: %w", err)
		}
	}
	if opts.Modes == nil {
		opts.Modes = dataplane.All()
	}
	limits := wasm.DefaultLimits()
	if opts.Offline {
		limits = wasm.OfflineLimits()
	}
	limits.Compile.CPU = cfg.PluginLimits.CompileTime
	host, err := wasm.New(ctx, wasm.Options{
		CacheDir: cache, Compiler: opts.Compiler, Process: opts.Process, Precompiled: opts.Precompiled, Memory: int64(cfg.PluginLimits.MemoryMiB) << 20, Log: opts.Log, Now: time.Now, Limits: limits,
	})
	if err != nil {
		return nil, err
	}
	return &Set{
		host: host, modes: opts.Modes, log: opts.Log, images: openImages(cache),
		loaded: map[string]*loadedPlugin{}, failed: map[string]error{}, problems: map[string]problem{}, closed: map[string]metrics.PluginStats{}, loads: map[string]*load{},
	}, nil
}

// ReleaseIdle frees memory of plugins that have not been called since the last call of ReleaseIdle.
func (s *Set) ReleaseIdle() { s.host.ReleaseIdle() }

// Get returns a plugin by name. It is called for every decision, and costs a map lookup.
func (s *Set) Get(name string) (policy.Plugin, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.loaded[name]; p != nil {
		return p, nil
	}
	if err := s.failed[name]; err != nil {
		return nil, err
	}
	return nil, errLoading
}

// IsChecked reports whether a plugin is loaded and has been checked with settings.
func (s *Set) IsChecked(name, settings string) bool {
	s.mu.RLock()
	p := s.loaded[name]
	s.mu.RUnlock()
	if p == nil {
		return false
	}
	_, known := p.verdict(settings)
	return known
}

// maxLoads is the maximum number of plugins that are loaded at the same time.
const maxLoads = 4

// Load updates the set to a configuration: plugins that need what its mode cannot provide are refused; plugins that are new or
// whose files have changed are compiled and checked with all their settings, and replace the previous revision if that succeeds.
// New settings of a plugin that has not changed are checked only. loaded, if not nil, is called as soon as that is done for a
// plugin, or has failed for another reason than before, by several goroutines: a module that takes long to compile delays no
// other one, see LoadInBackground. In shadows, plugins have names and instances of their own; they are loaded after all others,
// which come first if memory is scarce. changed reports whether any plugin was replaced or has new settings; err joins the errors
// of those that failed.
func (s *Set) Load(ctx context.Context, cfg *config.Config, loaded func()) (changed bool, err error) {
	s.host.SetMissing(s.modes.Get(cfg.Mode).MissingInputs())
	shadows := slices.Clone(cfg.Plugins)
	for i := range shadows {
		shadows[i].Name = policy.ShadowPlugin(shadows[i].Name)
	}
	wanted := map[string]bool{}
	var errs []error
	for _, specs := range [][]config.Plugin{cfg.Plugins, shadows} {
		swapped, failed := s.loadAll(ctx, cfg, specs, wanted, loaded)
		changed, errs = changed || swapped, append(errs, failed...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, p := range s.loaded {
		if !wanted[name] {
			delete(s.loaded, name)
			s.retired = append(s.retired, p)
		}
	}
	maps.DeleteFunc(s.loads, func(name string, l *load) bool {
		if !wanted[name] {
			l.cancel()
		}
		return !wanted[name]
	})
	maps.DeleteFunc(s.failed, func(name string, _ error) bool { return !wanted[name] })
	maps.DeleteFunc(s.problems, func(name string, _ problem) bool { return !wanted[name] })
	return changed, errors.Join(errs...)
}

// loadAll loads those of the plugins that policies use, and adds their names to wanted.
func (s *Set) loadAll(ctx context.Context, cfg *config.Config, specs []config.Plugin, wanted map[string]bool, loaded func()) (changed bool, errs []error) {
	swapped, errs := make([]bool, len(specs)), make([]error, len(specs))
	slots := make(chan struct{}, maxLoads)
	var wg sync.WaitGroup
	for i, spec := range specs {
		settings := cfg.SettingsOf(spec.Name)
		if len(settings) == 0 {
			continue
		}
		wanted[spec.Name] = true
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, before := s.Get(spec.Name)
			swapped[i], errs[i] = s.loadPlugin(ctx, cfg, spec, settings)
			s.setProblem(spec.Name, errs[i])
			_, after := s.Get(spec.Name)
			if loaded != nil && (swapped[i] || after != nil && after.Error() != before.Error()) {
				loaded()
			}
		})
	}
	wg.Wait()
	return slices.Contains(swapped, true), errs
}

// loadModule is loadPlugin with the module.
func (s *Set) loadModule(ctx context.Context, spec config.Plugin, settings []config.PluginSettings, module []byte, digest string) (changed bool, err error) {
	begin := time.Now()
	s.mu.RLock()
	old := s.loaded[spec.Name]
	s.mu.RUnlock()
	options := loadOptions(spec)
	if old != nil && old.source == digest && old.options == options {
		return old.check(ctx, spec.Name, settings)
	}
	plugin, err := s.host.Open(ctx, spec.Name, module, options)
	if err != nil {
		return false, s.fail(spec.Name, err)
	}
	p := &loadedPlugin{Plugin: plugin, source: digest, options: options, checked: map[string]error{}}
	if spec.File == "" {
		p.image = spec.Image.String()
	}
	_, refused := p.check(ctx, spec.Name, settings)
	if refused == nil || old == nil {
		err = plugin.Start(ctx)
	}
	if err != nil || refused != nil && old != nil {
		return false, errors.Join(s.fail(spec.Name, cmp.Or(err, p.firstRefusal(spec.Name, settings))), plugin.Close())
	}
	s.mu.Lock()
	s.loaded[spec.Name] = p
	delete(s.failed, spec.Name)
	if old != nil {
		s.retired = append(s.retired, old)
	}
	s.mu.Unlock()
	s.log.Info("loaded plugin", "plugin", spec.Name, "module", cmp.Or(spec.File, spec.Image.String()), "digest", digest, "settings", len(settings), "reloaded", old != nil,
		"code", codeSource(plugin.Report()), "duration", time.Since(begin))
	return true, refused
}

func codeSource(r wasm.Report) string {
	switch {
	case r.Precompiled:
		return "precompiled"
	case r.FromCache:
		return "cached"
	}
	return "compiled"
}

// check checks the plugin with settings that it has not been checked with, or that the mode decides on anew, and forgets others.
func (p *loadedPlugin) check(ctx context.Context, name string, settings []config.PluginSettings) (changed bool, err error) {
	refused := map[string][]config.PluginSettings{} // by cause
	var causes []error
	for _, s := range settings {
		old, ok := p.verdict(s.Text)
		ok = ok && (old != nil || p.Missing(s.Text) == nil)
		if !ok || old != nil { // what has failed may have lacked memory, or what another mode provides
			failed := old != nil
			_, old = p.Check(ctx, s.Text)
			changed = changed || !ok || failed && old == nil
			p.mu.Lock()
			p.checked[s.Text] = old
			p.mu.Unlock()
		}
		if old != nil {
			if refused[old.Error()] == nil {
				causes = append(causes, old)
			}
			refused[old.Error()] = append(refused[old.Error()], s)
		}
	}
	var errs []error
	for _, err := range causes {
		errs = append(errs, fmt.Errorf("plugin %s: %w", name, withFields(name, refused[err.Error()], err)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.checked, func(text string, _ error) bool {
		return !slices.ContainsFunc(settings, func(s config.PluginSettings) bool { return s.Text == text })
	})
	return changed, errors.Join(errs...)
}

// verdict returns what the check with settings has found, and whether there was one.
func (p *loadedPlugin) verdict(settings string) (error, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err, ok := p.checked[settings]
	return err, ok
}

// maxFields is how many fields an error names.
const maxFields = 10

// withFields adds the fields of the configuration to the error of checks with settings. Without settings, it is an error of the
// module.
func withFields(name string, all []config.PluginSettings, err error) error {
	var fields []string
	for i, s := range all {
		switch {
		case s.Text == "":
			return err
		case i < maxFields:
			fields = append(fields, s.Field)
		}
	}
	if more := len(all) - len(fields); more > 0 {
		return settingsError{fmt.Errorf("%s and %d more: %w", strings.Join(fields, ", "), more, err), name, all, err}
	}
	return settingsError{fmt.Errorf("%s: %w", strings.Join(fields, ", "), err), name, all, err}
}

// settingsError is why settings of the configuration are not in force.
type settingsError struct {
	error
	plugin string
	fields []config.PluginSettings
	cause  error
}

func (e settingsError) Unwrap() error { return e.error }

// Messages returns the errors of Load, one for each. Those of settings begin with the path of the field.
func Messages(err error) (out []string) {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			out = append(out, Messages(e)...)
		}
		return out
	}
	var e settingsError
	if !errors.As(err, &e) {
		return []string{err.Error()}
	}
	plugin, _ := policy.CutShadow(e.plugin)
	var schema *wasm.SchemaError
	for _, f := range e.fields {
		if !errors.As(e.cause, &schema) {
			out = append(out, fmt.Sprintf("%s: plugin %s: %v", f.Field, plugin, e.cause))
			continue
		}
		for _, p := range schema.Problems {
			field := f.Field
			if p.Path != "" {
				field += "." + p.Path
			}
			out = append(out, fmt.Sprintf("%s: plugin %s: %s", field, plugin, p.Message))
		}
	}
	return out
}

func (p *loadedPlugin) firstRefusal(name string, settings []config.PluginSettings) error {
	for _, s := range settings {
		if err, _ := p.verdict(s.Text); err != nil {
			return withFields(name, []config.PluginSettings{s}, err)
		}
	}
	return nil
}

// CloseRetired closes the plugins that Load has replaced. Call it when no decision can use them any more. It does not wait for
// calls that hang.
func (s *Set) CloseRetired() {
	s.mu.Lock()
	retired := s.retired
	s.retired = nil
	for _, p := range retired {
		addStats(s.closed, p, false)
	}
	s.mu.Unlock()
	for _, p := range retired {
		s.closing.Go(func() {
			if err := p.Close(); err != nil {
				s.log.Warn("closing a plugin failed", "err", err)
			}
		})
	}
}

func loadOptions(spec config.Plugin) wasm.LoadOptions {
	const pagesPerMiB = 16
	_, shadow := policy.CutShadow(spec.Name)
	return wasm.LoadOptions{
		MemoryPages: uint32(spec.Limits.MemoryMiB * pagesPerMiB), PerNamespace: spec.Isolation == config.IsolateNamespace,
		Instances: spec.Limits.Instances, RepeatOneIn: spec.RepeatOneIn, Spare: shadow,
	}
}

// fail records why there is no plugin, or no new revision of it.
func (s *Set) fail(name string, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded[name] != nil {
		return fmt.Errorf("plugin %s: %w (the previous revision stays in use)", name, err)
	}
	s.failed[name] = err // without the name of the plugin, which the caller of Get adds
	return fmt.Errorf("plugin %s: %w", name, err)
}

// Close closes all plugins and their host.
func (s *Set) Close(ctx context.Context) {
	s.mu.Lock()
	for _, l := range s.loads {
		l.cancel()
	}
	s.mu.Unlock()
	s.loading.Wait()
	s.mu.Lock()
	for _, p := range s.loaded {
		s.retired = append(s.retired, p)
	}
	clear(s.loaded)
	s.mu.Unlock()
	s.CloseRetired()
	s.closing.Wait()
	if err := s.host.Close(ctx); err != nil {
		s.log.Warn("closing the plugin host failed", "err", err)
	}
}
