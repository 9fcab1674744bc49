package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// maxTold is how many objects with problems are told one by one; the metric counts them all.
const maxTold = 200

// logbook knows the problems that objects have. Each is logged when it appears, and again only after it was gone.
type logbook struct {
	log   *slog.Logger
	count func(errors, warnings int) // may be nil

	mu               sync.Mutex
	known            map[objectKey][]source.Problem
	told             map[objectKey]bool // of known
	silent           bool               // that not all are told has been said
	errors, warnings int
}

type objectKey struct {
	kind string
	name model.Name
}

func newLogbook(log *slog.Logger, count func(errors, warnings int)) *logbook {
	return &logbook{log: log, count: count, known: map[objectKey][]source.Problem{}, told: map[objectKey]bool{}}
}

// set says which problems an object has now.
func (l *logbook) set(kind string, name model.Name, now []source.Problem) {
	k := objectKey{kind, name}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.known[k]
	if len(was) == 0 && len(now) == 0 {
		return
	}
	l.add(was, -1)
	l.add(now, 1)
	if l.count != nil {
		l.count(l.errors, l.warnings)
	}
	told := l.told[k]
	if len(now) == 0 {
		delete(l.known, k)
		delete(l.told, k)
		l.silent = l.silent && len(l.told) >= maxTold
	} else {
		l.known[k] = now
		if !told && len(l.told) >= maxTold {
			if !l.silent {
				l.log.Warn("more objects have problems than are told one by one", "told", maxTold)
			}
			l.silent = true
			return
		}
		l.told[k] = true
	}
	for _, p := range now {
		if !told || !has(was, p) {
			l.log.Log(context.Background(), level(p), "problem of an object", "object", p.Object, "field", p.Field, "err", p.Err)
		}
	}
	for _, p := range was {
		if told && !has(now, p) {
			l.log.Info("problem of an object is gone", "was", p.Error())
		}
	}
}

func (l *logbook) add(problems []source.Problem, n int) {
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

func has(list []source.Problem, p source.Problem) bool {
	text := p.Error()
	return slices.ContainsFunc(list, func(q source.Problem) bool { return q.Error() == text })
}

// names are the objects of a kind that have problems.
func (l *logbook) names(kind string) []model.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []model.Name
	for k := range l.known {
		if k.kind == kind {
			out = append(out, k.name)
		}
	}
	return out
}
