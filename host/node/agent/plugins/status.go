package plugins

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// Status is which revision of a plugin is in force.
type Status struct {
	Name   string
	Digest string // of the module file in force, sha256:…; "": none is loaded
	Image  string // that it was read from, by digest; "": a file
	// Unconfined are the layers of confinement that its process lacks, see package confine.
	Unconfined []string
	// Err is why the module of the configuration, or settings of the configuration, are not in force; nil: they are. Its text
	// names the plugin, and says whether the previous revision stays in use.
	Err error
	// Settings: settings of the configuration are a reason of Err.
	Settings bool
	Since    time.Time // of Err: when the plugin failed first since it was loaded last
}

// Loading reports whether the module of the configuration is on its way: nothing has failed.
func (s *Status) Loading() bool { return s.Err != nil && OnlyLoading(s.Err) }

// problem is the error of the last Load of a plugin.
type problem struct {
	err   error
	since time.Time
}

// setProblem records the result of loading a plugin.
func (s *Set) setProblem(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch p, failed := s.problems[name]; {
	case err == nil:
		delete(s.problems, name)
	case failed:
		s.problems[name] = problem{err, p.since}
	default:
		s.problems[name] = problem{err, time.Now()}
	}
}

// Status returns the status of each plugin that policies use, sorted by name. One that has not been loaded yet is missing.
func (s *Set) Status() (out []Status) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := map[string]bool{}
	for name := range s.loaded {
		names[name] = true
	}
	for name := range s.problems {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		st := Status{Name: name, Err: s.problems[name].err, Since: s.problems[name].since}
		st.Settings = errors.As(st.Err, new(settingsError))
		if p := s.loaded[name]; p != nil {
			st.Digest, st.Image = p.source, p.image
			for _, l := range p.Report().Confinement {
				if l.Err != "" {
					st.Unconfined = append(st.Unconfined, l.Name)
				}
			}
		}
		out = append(out, st)
	}
	return out
}
