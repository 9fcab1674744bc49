package plugins

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// patience is Set.patience in sluice run.
const patience = 10 * time.Second

// load is a load of a plugin, which may go on when the Load that began it has returned.
type load struct {
	digest   string // of the module
	options  wasm.LoadOptions
	settings []config.PluginSettings
	cancel   context.CancelFunc
	late     bool          // nobody waits for it, guarded by Set.mu
	done     chan struct{} // closed when there are results
	changed  bool
	err      error
}

// LoadInBackground has Load wait for each plugin no longer than a patience: neither other loads nor what waits for Load wait for
// a module that takes long. When such a load has ended, changed is called, and the next Load has its result.
func (s *Set) LoadInBackground(changed func()) {
	s.patience, s.changed = patience, changed
}

// loadPlugin loads a plugin, unless its module has not changed, and checks it with settings that it has not been checked with. A
// new revision that refuses settings does not replace one that is in use.
func (s *Set) loadPlugin(ctx context.Context, cfg *config.Config, spec config.Plugin, settings []config.PluginSettings) (changed bool, err error) {
	module, digest, err := s.readModule(ctx, cfg, spec)
	if err != nil {
		return false, s.fail(spec.Name, err)
	}
	run := func(ctx context.Context) (bool, error) {
		return s.loadModule(ctx, spec, settings, module, digest)
	}
	if s.patience == 0 {
		return run(ctx)
	}
	want := &load{digest: digest, options: loadOptions(spec), settings: settings, done: make(chan struct{})}
	tooLong, stop := context.WithTimeout(ctx, s.patience)
	defer stop()
	for {
		l, late := s.begin(ctx, spec.Name, want, run)
		if late {
			stop()
		}
		select {
		case <-l.done:
		case <-tooLong.Done():
		}
		switch {
		case !s.end(spec.Name, l):
			return false, because(Pulling, fmt.Errorf("plugin %s: it has not been loaded in %s: others do not wait for it", spec.Name, s.patience))
		case l == want:
			return l.changed, l.err
		case l.is(want) && l.err == nil:
			_, err = run(ctx) // another mode may give it other inputs
			return true, err
		case l.is(want):
			return true, l.err // which nobody has been told
		}
	}
}

// is reports whether a load is that of the same module with the same settings.
func (l *load) is(want *load) bool {
	return l.digest == want.digest && l.options == want.options && slices.Equal(l.settings, want.settings)
}

// begin begins a load if none of the plugin goes on, and returns the one that does, and whether it has been waited for. It
// cancels another one than that.
func (s *Set) begin(ctx context.Context, name string, want *load, run func(context.Context) (bool, error)) (l *load, late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = s.loads[name]
	switch {
	case l == nil:
		ctx, want.cancel = context.WithCancel(ctx)
		s.loads[name] = want
		s.loading.Go(func() { s.run(ctx, want, run) })
		return want, false
	case !l.is(want):
		l.cancel()
		return l, false
	}
	return l, l.late
}

func (s *Set) run(ctx context.Context, l *load, run func(context.Context) (bool, error)) {
	defer l.cancel()
	l.changed, l.err = run(ctx)
	close(l.done)
	s.mu.Lock()
	late := l.late
	s.mu.Unlock()
	if late {
		s.changed()
	}
}

// end forgets a load that has ended, and reports whether it has.
func (s *Set) end(name string, l *load) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-l.done:
		if s.loads[name] == l {
			delete(s.loads, name)
		}
		return true
	default:
		l.late = true
		return false
	}
}
