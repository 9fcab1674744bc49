package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// maxLogged is how many invalid objects are logged individually; the metric counts all of them.
const maxLogged = 200

// problemTracker tracks the problems of all objects. It logs each when it appears and when it is resolved.
type problemTracker struct {
	log     *slog.Logger
	onCount func(errors, warnings int) // may be nil

	mu               sync.Mutex
	current          map[objectKey][]source.Problem
	logged           map[objectKey]bool // of current
	limitLogged      bool               // it has been logged that maxLogged is reached
	errors, warnings int
}

type objectKey struct {
	kind string
	name model.Name
}

func newProblemTracker(log *slog.Logger, onCount func(errors, warnings int)) *problemTracker {
	return &problemTracker{log: log, onCount: onCount, current: map[objectKey][]source.Problem{}, logged: map[objectKey]bool{}}
}

// set replaces the problems of an object.
func (l *problemTracker) set(kind string, name model.Name, current []source.Problem) {
	k := objectKey{kind, name}
	l.mu.Lock()
	defer l.mu.Unlock()
	previous := l.current[k]
	if len(previous) == 0 && len(current) == 0 {
		return
	}
	l.add(previous, -1)
	l.add(current, 1)
	if l.onCount != nil {
		l.onCount(l.errors, l.warnings)
	}
	logged := l.logged[k]
	if len(current) == 0 {
		delete(l.current, k)
		delete(l.logged, k)
		l.limitLogged = l.limitLogged && len(l.logged) >= maxLogged
	} else {
		l.current[k] = current
		if !logged && len(l.logged) >= maxLogged {
			if !l.limitLogged {
				l.log.Warn("too many invalid objects; further ones are not logged", "limit", maxLogged)
			}
			l.limitLogged = true
			return
		}
		l.logged[k] = true
	}
	for _, p := range current {
		if !logged || !containsProblem(previous, p) {
			l.log.Log(context.Background(), level(p), "invalid object", "object", p.Object, "field", p.Field, "err", p.Err)
		}
	}
	for _, p := range previous {
		if logged && !containsProblem(current, p) {
			l.log.Info("invalid object resolved", "problem", p.Error())
		}
	}
}

func (l *problemTracker) add(problems []source.Problem, n int) {
	for _, p := range problems {
		if p.Warning {
			l.warnings += n
		} else {
			l.errors += n
		}
	}
}

func level(p source.Problem) slog.Level {
	if p.Warning {
		return slog.LevelWarn
	}
	return slog.LevelError
}

func containsProblem(list []source.Problem, p source.Problem) bool {
	text := p.Error()
	return slices.ContainsFunc(list, func(q source.Problem) bool { return q.Error() == text })
}

// objectsWithProblems returns the names of a kind's objects that have problems.
func (l *problemTracker) objectsWithProblems(kind string) []model.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []model.Name
	for k := range l.current {
		if k.kind == kind {
			out = append(out, k.name)
		}
	}
	return out
}
